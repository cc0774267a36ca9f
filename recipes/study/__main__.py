"""python -m recipes.study OUT [OVERRIDE ...]: train, grade and summarise all arms and seeds of a study.

Called by ``recipes/study.sh``, which gives the tiny base's overrides. One run directory for each arm and seed,
``OUT/<arm>-seed<number>``; a finished one is skipped, an interrupted one goes on from its checkpoint. Seeds are the
outer loop, so that a study that is cut short has every arm equally often.

Exit codes: 0 finished, 1 some run failed, 2 the settings can't run, 75 stopped on request.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr_overrides.sizes import BUDGETS
from eval.members import base_revision
from eval.types import UsageError
from recipes.study.arms import ARMS, SIZES, Size, choose_arms
from recipes.study.runs import StudyError, is_trained, locked, run_logged
from recipes.study.summary import run_folder, write_summary
from verl_populora.files import write_atomically
from verl_populora.report.cost_table import duration
from verl_populora.rundir import HELDOUT, RunDirError

OK, FAILED, BAD_SETTINGS, STOPPED = 0, 1, 2, 75
MODEL_KEY = "actor_rollout_ref.model.path="
# What sizes, arms and seeds decide; an override of it would be lost.
RESERVED = {
    "population",
    "population.budget",
    "population.evolution.interval",
    "trainer.total_training_steps",
    "seed",
    "run_dir",
}
SAVES = 5  # checkpoints over a run, of which the newest is kept


@dataclass(frozen=True, slots=True)
class Settings:
    """What all runs of a study have in common."""

    size: Size
    budget: str
    learning_rate: float
    overrides: tuple[str, ...]

    def command(self, arm: str, seed: int, run_dir: Path) -> list[str]:
        """The training command; what a size and an arm say wins over the overrides."""
        steps = self.size.steps
        return [
            *(sys.executable, "-m", "azr_overrides.main"),
            *self.overrides,
            f"population.budget={self.budget}",
            f"actor_rollout_ref.actor.optim.lr={self.learning_rate}",
            f"population.evolution.interval={self.size.evolution_interval}",
            f"trainer.total_training_steps={steps}",
            f"trainer.save_freq={max(1, steps // SAVES)}",
            "trainer.max_actor_ckpt_to_keep=1",
            *ARMS[arm],
            f"seed={seed}",
            f"run_dir={run_dir}",
        ]

    def record(self) -> dict[str, Any]:
        """What must not change when a study is continued.

        Raises:
            StudyError: an override can't be one.
        """
        for text in self.overrides:
            if text.partition("=")[0].lstrip("+") in RESERVED:
                raise StudyError(
                    f"{text} can't be an override of a study; sizes, arms, seeds and the budget are its own options "
                    "(see bash recipes/study.sh --help)"
                )
        models = [text.removeprefix(MODEL_KEY) for text in self.overrides if text.startswith(MODEL_KEY)]
        if not models:
            raise StudyError(f"no {MODEL_KEY}... is given; start the study by recipes/study.sh")
        return {
            "steps": self.size.steps,
            "evolution_interval": self.size.evolution_interval,
            "budget": self.budget,
            "learning_rate": self.learning_rate,
            "overrides": list(self.overrides),
            "base_revision": base_revision(models[-1], None),
        }


def check_settings(out: Path, settings: Settings) -> None:
    """Remember the settings of a new study; a continued one has to have the same.

    Raises:
        StudyError: they differ.
    """
    path, wanted = out / "study.json", settings.record()
    if not path.exists():
        write_atomically(path, json.dumps(wanted, indent=2) + "\n")
        return
    known = json.loads(path.read_text(encoding="utf-8"))
    changed = [
        f"{key} was {known.get(key)!r} and is {wanted[key]!r} now" for key in wanted if known.get(key) != wanted[key]
    ]
    if changed:
        raise StudyError(f"{out} holds a study with other settings: {'; '.join(changed)}. Choose another directory")


def run_one(out: Path, settings: Settings, arm: str, seed: int, before: Path | None) -> int:
    """Train and grade one arm with one seed, as far as that is not done yet; returns the exit code."""
    run_dir = run_folder(out, arm, seed)
    log = out / "logs" / f"{run_dir.name}.log"
    log.parent.mkdir(exist_ok=True)
    if not is_trained(run_dir, settings.size.steps):
        (run_dir / HELDOUT).unlink(missing_ok=True)
        if code := run_logged(settings.command(arm, seed, run_dir), log):
            return code
    if not (run_dir / HELDOUT).exists():
        command = [sys.executable, "-m", "recipes.study.heldout", str(run_dir)]
        return run_logged([*command, "--before", str(before)] if before else command, log)
    return OK


def run_study(out: Path, settings: Settings, arms: Sequence[str], seeds: int) -> int:
    """All runs, then the report and the summary."""
    plan = [(arm, seed) for seed in range(1, seeds + 1) for arm in arms]
    failed: list[str] = []
    for number, (arm, seed) in enumerate(plan, start=1):
        run_dir = run_folder(out, arm, seed)
        place = f"[{number}/{len(plan)}] {run_dir.name}"
        if is_trained(run_dir, settings.size.steps) and (run_dir / HELDOUT).exists():
            print(f"{place}: done before", flush=True)
            continue
        print(f"{place}: {settings.size.steps} steps; live: python -m verl_populora.watch {run_dir}", flush=True)
        started = time.monotonic()
        code = run_one(out, settings, arm, seed, next(iter(sorted(out.glob(f"*-seed*/{HELDOUT}"))), None))
        if code == STOPPED:
            raise KeyboardInterrupt
        if code:
            print(f"{place}: failed with exit code {code}; see {out}/logs/{run_dir.name}.log", flush=True)
            failed.append(run_dir.name)
            continue
        print(f"{place}: {duration(time.monotonic() - started)}", flush=True)
    done = [d for arm, seed in plan if ((d := run_folder(out, arm, seed)) / HELDOUT).exists()]
    if done:
        window = max(1, settings.size.steps // 4)
        report = [sys.executable, "-m", "verl_populora.report", *map(str, done), "-o", str(out / "report")]
        subprocess.run([*report, "--window", str(window)], check=True, stdout=subprocess.DEVNULL)
        print(f"page: {out / 'report' / 'report.html'}\nsummary: {write_summary(out)}")
    if failed:
        print(f"{len(failed)} of {len(plan)} runs failed: {', '.join(failed)}. The same command tries them again.")
    return FAILED if failed else OK


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path, help="directory of the study")
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", help="of every run")
    parser.add_argument("--size", choices=SIZES, default="short", help="(default: short)")
    parser.add_argument("--arms", help="names, separated by spaces or commas (default: those of the size)")
    parser.add_argument("--seeds", type=int, help="(default: that of the size)")
    parser.add_argument("--budget", choices=BUDGETS, default="total", help="what the arms share (default: total)")
    parser.add_argument("--learning-rate", type=float, help="of all arms (default: that of the size)")
    parser.add_argument("--dry-run", action="store_true", help="print the commands, start nothing")
    arguments = parser.parse_args(argv)
    size = SIZES[arguments.size]
    seeds = size.seeds if arguments.seeds is None else arguments.seeds
    if seeds < 1:
        parser.error(f"--seeds must be at least 1, not {seeds}")
    rate = size.learning_rate if arguments.learning_rate is None else arguments.learning_rate
    out, settings = arguments.out.absolute(), Settings(size, arguments.budget, rate, tuple(arguments.overrides))
    try:
        arms = choose_arms(arguments.arms) if arguments.arms else size.arms
        if arguments.dry_run:
            settings.record()
            for seed in range(1, seeds + 1):
                for arm in arms:
                    print(" ".join(settings.command(arm, seed, run_folder(out, arm, seed))))
            return OK
        with locked(out):
            check_settings(out, settings)
            signal.signal(signal.SIGTERM, _interrupt)
            return run_study(out, settings, arms, seeds)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    except (StudyError, UsageError, RunDirError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTINGS


if __name__ == "__main__":
    sys.exit(main())
