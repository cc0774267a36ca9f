"""Tokens a second of the rollout with mixed adapters: ``python -m tests.benchmarks.rollout``.

Real vLLM on the tiny base on a CPU, 128 requests of 64 prompt and 96 sampled tokens at once, each with a seed and
log-probabilities as in a run. Prints one JSON object; ratios are the medians over rounds in which the variants take
turns, so that a busy machine slows all of them:

- ``mixed8_vs_one``: tokens a second with eight adapters mixed / with one adapter for all requests.
- ``one_vs_none``: with one adapter / by a vLLM that was started without LoRA.
- ``mixed8_vs_stock``: with eight adapters mixed / the same with vLLM's own CPU LoRA operators.

``*_cpu`` are the same ratios in tokens per second of processor time.
"""

import argparse
import json
import os
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from tests.benchmarks.vllm_process import EngineProcess, random_adapters

MODEL = str(Path(__file__).parents[2] / "recipes" / "tiny_base" / "model")
REQUESTS, TOKENS, PROMPT, ADAPTERS = 128, 96, 64, 8


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.rollout", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    mixed = [i % ADAPTERS + 1 for i in range(REQUESTS)]
    samples: dict[str, list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        ours = stack.enter_context(EngineProcess(MODEL, ADAPTERS))
        stock = stack.enter_context(EngineProcess(MODEL, ADAPTERS, own_operators=False))
        none = stack.enter_context(EngineProcess(MODEL, 0))
        adapters = random_adapters(MODEL, ADAPTERS)
        for engine in (ours, stock):
            engine.install(*adapters)
        variants = {
            "mixed8": (ours, mixed),
            "one": (ours, [1] * REQUESTS),
            "none": (none, [0] * REQUESTS),
            "stock": (stock, mixed),
        }
        for round_number in range(rounds + 1):
            for name, (engine, adapter_ids) in variants.items():
                elapsed = engine.generate(adapter_ids, TOKENS, PROMPT)
                if round_number:  # the first one warms up
                    samples.setdefault(name, []).append(elapsed)
    result = {}
    for column, suffix in ((0, ""), (1, "_cpu")):
        for one, other in (("mixed8", "one"), ("one", "none"), ("mixed8", "stock")):
            pairs = zip(samples[one], samples[other], strict=True)
            result[f"{one}_vs_{other}{suffix}"] = round(median(b[column] / a[column] for a, b in pairs), 3)
    seconds = {name: median(wall for wall, _ in values) for name, values in samples.items()}
    result["tokens_per_s"] = {name: round(REQUESTS * TOKENS / value) for name, value in seconds.items()}
    result |= {"requests": REQUESTS, "rounds": rounds, "load_average": round(os.getloadavg()[0], 1)}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
