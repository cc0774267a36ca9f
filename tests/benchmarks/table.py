"""Run the benchmarks of the engine and print their table as Markdown: ``python -m tests.benchmarks.table``.

Results are kept in ``runs/benchmarks/`` (``--cache``), one file for each benchmark, and used again, so that an
interrupted call goes on where it stopped; ``--again NAME ...`` measures some anew, ``--again all`` everything. A
benchmark that fails is named below the table, and the exit code is 1.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_populora.files import write_atomically


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a number of one benchmark's JSON object, which should not exceed, or reach, a bound."""

    benchmark: str
    key: str
    what: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"


COMMANDS = {
    "train_step": ("train_step",),
    "train_step_short": ("train_step", "--length", "2", "--repeats", "7"),
    "rollout": ("rollout",),
    "sync": ("sync",),
    "overlap": ("overlap",),
    "population_overhead": ("population_overhead",),
}

ROWS = (
    Row("train_step", "mixed_vs_single", "update: eight adapters mixed / one adapter, same tokens", at_most=1.25),
    Row("train_step", "mixed_vs_peft", "update: our mixed LoRA layers / PEFT's with hooks", at_most=1.0),
    Row("train_step", "loop_vs_mixed", "update: a pass for each adapter / one mixed pass, 32 tokens a row", at_least=3),
    Row("train_step", "products_loop_vs_mixed", "the same for the base's bare matrix products"),
    Row("train_step_short", "loop_vs_mixed", "update: a pass for each adapter / one mixed pass, 2 tokens a row"),
    Row("train_step_short", "products_loop_vs_mixed", "the same for the base's bare matrix products"),
    Row("population_overhead", "vs_single", "step: 4t4s / single agent, per token at equal samples", at_most=1.31),
    Row("overlap", "ratio", "step without barriers / propose, verify, solve one after the other", at_most=0.75),
    Row("sync", "one_vs_all", "sync: one changed adapter of eight / all eight", at_most=0.1667),
    Row("rollout", "mixed8_vs_one", "rollout tokens a second: eight adapters mixed / one adapter"),
    Row("rollout", "one_vs_none", "rollout tokens a second: one adapter / vLLM without LoRA"),
    Row("rollout", "mixed8_vs_stock", "rollout tokens a second: our CPU LoRA operators / vLLM's"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.table", description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("runs/benchmarks"))
    parser.add_argument("--again", nargs="+", default=[], choices=["all", *COMMANDS], metavar="NAME")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[str, Any]] = {}
    failures = []
    for name, command in COMMANDS.items():
        path = options.cache / f"{name}.json"
        if not path.exists() or {"all", name} & set(options.again):
            print(f"python -m tests.benchmarks.{' '.join(command)}", file=sys.stderr)
            done = subprocess.run(
                [sys.executable, "-m", f"tests.benchmarks.{command[0]}", *command[1:]],
                stdout=subprocess.PIPE,
                text=True,
            )
            if done.returncode:
                failures.append(f"{name}: exit code {done.returncode}")
                continue
            write_atomically(path, done.stdout.strip().splitlines()[-1] + "\n")
        results[name] = json.loads(path.read_text())
    print(table(results))
    print("\n".join(failures), file=sys.stderr)
    return int(bool(failures))


def table(results: dict[str, dict[str, Any]]) -> str:
    """Markdown; a benchmark without a result is "not run"."""
    lines = ["| what | measured | target | command |", "|---|---|---|---|"]
    for row in ROWS:
        result = results.get(row.benchmark)
        value = "not run" if result is None else f"{result[row.key]:.2f}"
        command = " ".join(COMMANDS[row.benchmark])
        lines.append(f"| {row.what} | {value} | {row.target} | `tests.benchmarks.{command}` |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
