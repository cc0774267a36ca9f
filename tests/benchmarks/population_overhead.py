"""A population's step beside one adapter's of equal size: ``python -m tests.benchmarks.population_overhead``.

Whole training runs of the quick start (Ray, verl, vLLM, sandbox, tiny base on the CPU): ``4t4s`` with
``population.budget=total``, which makes 160 samples a step, and ``single``, which makes 162. Both stay at the base
(learning rate 0 is no frozen role: every update is computed), so that all steps do the same work. Takes turns, some
steps each. Prints one JSON object:

- ``vs_single``: median wall-clock of a step of the population / of the single agent, each divided by its tokens.
- ``vs_single_step``: the same without dividing by tokens, which differ because invalid proposals get no attempts.
- ``phases_vs_single``: ``vs_single`` of the phases of a step.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.e2e_support import ROOT, SCRIPT
from verl_populora.rundir import RunReader

COMMON = (
    "data.train_batch_size=9",
    "actor_rollout_ref.actor.optim.lr=1e-9",
    "population.evolution.enabled=false",
    "trainer.save_freq=-1",
)
RUNS = {"population": ("population=4t4s", "population.budget=total"), "single": ("population=single",)}
PHASES = ("rollout", "log_prob", "update", "sync")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.population_overhead", description=__doc__)
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind")
    options = parser.parse_args()
    rows: dict[str, list[dict]] = {name: [] for name in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for name, overrides in RUNS.items():
                print(f"run {number + 1} of {options.rounds}: {name}", file=sys.stderr)
                rows[name] += train(Path(folder) / f"{name}{number}", *overrides, steps=options.steps)[1:]
    per_token = {
        phase: {name: median(row[f"time/{phase}"] / tokens(row) for row in rows[name]) for name in RUNS}
        for phase in ("step", *PHASES)
    }
    ratios = {phase: values["population"] / values["single"] for phase, values in per_token.items()}
    seconds = {name: median(row["time/step"] for row in rows[name]) for name in RUNS}
    print(
        json.dumps(
            {
                "vs_single": round(ratios["step"], 3),
                "vs_single_step": round(seconds["population"] / seconds["single"], 3),
                "phases_vs_single": {phase: round(ratios[phase], 3) for phase in PHASES},
                "step_seconds": {name: round(value, 2) for name, value in seconds.items()},
                "tokens": {name: round(median(map(tokens, rows[name]))) for name in RUNS},
                "steps": len(rows["single"]),
                "load_average": round(os.getloadavg()[0], 1),
            }
        )
    )


def tokens(row: dict) -> float:
    """Tokens that a step trained on, prompts included."""
    return row["perf/total_num_tokens"]


def train(run_dir: Path, *overrides: str, steps: int) -> list[dict]:
    """The metrics of each step of one run; nothing of the run is alive when this returns.

    Raises:
        RuntimeError: the run failed.
    """
    last = (f"trainer.total_training_steps={steps}", f"run_dir={run_dir}")
    with subprocess.Popen(
        ["bash", "-c", SCRIPT, sys.executable, *COMMON, *overrides, *last],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"the run failed:\n{output[-4000:]}")
    return RunReader(run_dir).metrics()


if __name__ == "__main__":
    main()
