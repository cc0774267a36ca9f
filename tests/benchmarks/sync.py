"""Cost of bringing adapters to the rollout: ``python -m tests.benchmarks.sync``.

The trainer's engine (a random Qwen2 of 50 million parameters, eight members of rank 32) sends through verl's shared
memory to a real vLLM, which installs, reads back its receipts, and both sides are compared: all that a step's
synchronisation does. Prints one JSON object:

- ``one_vs_all``: one changed adapter of eight / all eight changed, medians of wall-clock over rounds in turn.
- ``none_vs_all``: nothing changed, so only the checks / all eight changed.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from statistics import median
from typing import Any

from tests.benchmarks.vllm_process import EngineProcess

RANK = 32


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sync", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    os.environ["VERL_RAY_JOB_ID"] = f"benchmark-{os.getpid()}"  # part of the socket's name on both sides
    from tests.benchmarks.train_step import MODEL
    from tests.multi_lora_reference import random_model

    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        model = random_model(MODEL)
        model.save_pretrained(folder)
        with EngineProcess(folder, adapters=8, rank=RANK) as rollout:
            from tests.engine_setup import make_engine

            trainer = make_engine(folder, teachers=4, students=4, rank=RANK)
            seats = trainer.layout.seats
            changes = {"all": seats, "one": seats[:1], "none": ()}
            for round_number in range(rounds + 1):
                for name, changed in changes.items():
                    for seat in changed:
                        trainer.versions[seat] += 1
                    elapsed = synchronise(trainer, rollout)
                    if round_number:
                        seconds.setdefault(name, []).append(elapsed)
            megabytes = sum(t.nbytes for t in trainer.export_member(seats[0]).values()) / 2**20
    medians = {name: median(values) for name, values in seconds.items()}
    result: dict[str, Any] = {f"{name}_vs_all": round(medians[name] / medians["all"], 4) for name in ("one", "none")}
    result["milliseconds"] = {name: round(1000 * value, 1) for name, value in medians.items()}
    result |= {
        "adapter_megabytes": round(megabytes, 1),
        "rounds": rounds,
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))


def synchronise(trainer: Any, rollout: EngineProcess) -> float:
    """Seconds of one synchronisation with its delivery check.

    Raises:
        DeliveryError: the engine does not hold what was sent.
    """
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    from verl_populora.engine.delivery import AdapterReceipt, compare

    started = time.perf_counter()
    stream, description = trainer.get_per_tensor_param(base_sync_done=True)
    rollout.send(("synchronise", description))
    socket = f"ipc:///tmp/rl-colocate-zmq-{os.environ['VERL_RAY_JOB_ID']}-replica-0-rank-0.sock"
    sender = BucketedWeightSender(zmq_handle=socket, bucket_size_mb=64, use_shm=True)
    asyncio.run(sender.async_send_weights(stream))
    held = {receipt["adapter_id"]: AdapterReceipt(**receipt) for receipt in rollout.receive()}
    compare({receipt.adapter_id: receipt for receipt in trainer.receipts()}, held, "0")
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
