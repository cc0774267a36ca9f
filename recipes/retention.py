"""python -m recipes.retention OUT [OVERRIDE ...]: how much of its parents' skill does a child of each operator keep?

Called by ``recipes/retention.sh``, which gives the tiny base's overrides. Two teachers and two students are trained;
every variation operator makes a child of each role from their weights; all children, with the parents as a control,
then take the seats of one population and train on without evolution. Students are measured on the held-out tasks,
teachers by the share of valid proposals, before and after that training. Every stage whose result lies in OUT is
skipped, so the same command goes on where it was stopped. OUT/retention.md holds the table.

Exit codes: 0 finished, 1 a training failed, 2 the settings can't run, 75 stopped on request.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.tasks.types import Task, TaskKind
from azr_overrides.tasks.verification import Verifier
from eval.members import newest_checkpoint
from eval.types import UsageError
from recipes.study.heldout import Job, solve_heldout
from recipes.study.runs import StudyError, is_trained, locked, run_logged
from recipes.tiny_base.evaluate import Bench
from recipes.tiny_base.heldout import Row
from recipes.tiny_base.sampler import Sampler
from recipes.tiny_base.seeds import io_rows
from verl_populora.adapters.peft_io import read_peft, write_peft
from verl_populora.evolution.registry import ALIASES, make_operator
from verl_populora.files import write_atomically
from verl_populora.members import Role
from verl_populora.rundir import RunDirError, RunReader

OK, FAILED, BAD_SETTINGS, STOPPED = 0, 1, 2, 75
ROLES = (Role.TEACHER, Role.STUDENT)
CONTROLS = ("parent 1", "parent 2")
ENTRANTS = (*CONTROLS, *ALIASES)  # who sits in seat 1, 2, ... of each role in the second run
PROPOSALS_EACH = 3  # of a teacher for each of the 64 reference programs
SEED = 0


@dataclass(frozen=True, slots=True)
class Settings:
    steps: int  # of the parents
    further: int  # of everybody afterwards
    samples: int  # attempts at each held-out task
    learning_rate: float
    seed: int
    workers: int
    overrides: tuple[str, ...]

    def command(self, run_dir: Path, steps: int, *overrides: str) -> list[str]:
        return [
            *(sys.executable, "-m", "azr_overrides.main", *self.overrides),
            "population=2t2s",
            "population.evolution.enabled=false",
            f"actor_rollout_ref.actor.optim.lr={self.learning_rate}",
            f"trainer.total_training_steps={steps}",
            "trainer.save_freq=5",
            "trainer.max_actor_ckpt_to_keep=1",
            f"seed={self.seed}",
            f"run_dir={run_dir}",
            *overrides,
        ]


# ---- members --------------------------------------------------------------------------------------------------------


def train(run_dir: Path, command: Sequence[str], steps: int) -> None:
    """Run or continue a training until it is done.

    Raises:
        RuntimeError: it failed.
    """
    if is_trained(run_dir, steps):
        return
    print(f"{run_dir.name}: {steps} steps; live: python -m verl_populora.watch {run_dir}", flush=True)
    log = run_dir.with_suffix(".log")
    if code := run_logged(command, log):
        raise RuntimeError(f"{run_dir.name} ended with exit code {code}; see {log}")


def adapters_of(run_dir: Path) -> dict[str, Path]:
    """Adapter folder of each seat in the newest checkpoint, fittest first in each role."""
    checkpoint = newest_checkpoint(run_dir)
    members = json.loads((checkpoint / "population.json").read_text())["members"]
    members.sort(key=lambda member: -(member["rating"][0] - 3 * member["rating"][1]))
    return {member["seat"]: checkpoint / member["adapter"] for member in members}


def breed(parents: Mapping[str, Path], folder: Path, seed: int) -> None:
    """Write ``folder/<seat>`` for every entrant of both roles."""
    for role in ROLES:
        pair = [read_peft(path) for seat, path in parents.items() if seat.startswith(role)]
        weights = {name: one.weights for name, one in zip(CONTROLS, pair, strict=True)}
        for short in ALIASES:
            operator = make_operator(short)
            weights[short] = operator([one.weights for one in pair[: operator.arity]], seed)
        for number, entrant in enumerate(ENTRANTS, start=1):
            write_peft(
                folder / f"{role}{number}", weights[entrant], pair[0].base_model_name, config_extra=pair[0].config
            )


# ---- measures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measurement:
    """What to measure of one adapter, and where the result goes."""

    role: Role
    base: Path
    adapter: Path | None
    samples: int
    result: Path  # JSON list: a share in [0, 1] for each task or reference program


def measure(one: Measurement) -> None:
    torch.set_num_threads(1)
    if one.role is Role.STUDENT:
        scores = solve_heldout(Job(one.base, one.adapter, one.samples))
    else:
        scores = asyncio.run(_valid_shares(one.base, one.adapter))
    write_atomically(one.result, json.dumps(scores) + "\n")


async def _valid_shares(base: Path, adapter: Path | None) -> tuple[float, ...]:
    references = [Row(TaskKind.CODE_O, row["snippet"], (row["input"],), (row["output"],)).task() for row in io_rows()]
    async with Sandbox(SandboxConfig(cpu_s=2, wall_s=2)) as sandbox:
        bench = Bench(Sampler(base, SEED, adapter), Verifier(sandbox), batch=48)
        proposals = await bench.propose(TaskKind.CODE_O, references, PROPOSALS_EACH)
    valid = [isinstance(proposal.result, Task) for proposal in proposals]
    return tuple(fmean(valid[first : first + PROPOSALS_EACH]) for first in range(0, len(valid), PROPOSALS_EACH))


def measurements(out: Path, base: Path, samples: int) -> list[Measurement]:
    """All measurements, those of the base first."""
    before = {seat.name: seat for seat in (out / "children").iterdir()}
    after = adapters_of(out / "further")
    jobs = []
    for role in ROLES:
        jobs.append(Measurement(role, base, None, samples, out / "scores" / f"{role}-base.json"))
        for number, _ in enumerate(ENTRANTS, start=1):
            seat = f"{role}{number}"
            for when, adapters in (("before", before), ("after", after)):
                jobs.append(Measurement(role, base, adapters[seat], samples, out / "scores" / f"{seat}-{when}.json"))
    return jobs


# ---- table ----------------------------------------------------------------------------------------------------------


def table(scores: Path, further: int) -> str:
    """Markdown: the scores of every entrant before and after, with standard errors over tasks or references."""

    def read(name: str) -> list[float]:
        return json.loads((scores / f"{name}.json").read_text())

    head = [
        "",
        *(f"{what}, {when}" for what in ("solve rate", "valid rate") for when in ("before", f"+{further} steps")),
    ]
    base = [_figure(read(f"{role}-base")) for role in (Role.STUDENT, Role.TEACHER)]
    lines = ["| " + " | ".join(head) + " |", "|---|---:|---:|---:|---:|", f"| base | {base[0]} | | {base[1]} | |"]
    for number, entrant in enumerate(ENTRANTS, start=1):
        cells = []
        for role in (Role.STUDENT, Role.TEACHER):
            parents = 1 if entrant in CONTROLS else make_operator(entrant).arity
            reference = fmean(fmean(read(f"{role}{parent}-before")) for parent in range(1, parents + 1))
            for when in ("before", "after"):
                figures = read(f"{role}{number}-{when}")
                kept = "" if entrant in CONTROLS else f" ({fmean(figures) / reference:.0%})" if reference else ""
                cells.append(_figure(figures) + kept)
        name = entrant if entrant in CONTROLS else f"{entrant} {ALIASES[entrant]}"
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _figure(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f} ± {stdev(values) / len(values) ** 0.5:.3f}"


# ---- the whole ------------------------------------------------------------------------------------------------------


def check_settings(out: Path, settings: Settings) -> None:
    """Remember the settings; a continued measurement has to have the same.

    Raises:
        StudyError: they differ.
    """
    path = out / "settings.json"
    wanted: dict[str, Any] = asdict(settings) | {"overrides": list(settings.overrides)}
    del wanted["workers"]
    if not path.exists():
        write_atomically(path, json.dumps(wanted, indent=2) + "\n")
    elif (known := json.loads(path.read_text())) != wanted:
        changed = [key for key in wanted if known.get(key) != wanted[key]]
        raise StudyError(f"{out} was begun with other settings ({', '.join(changed)}); choose another directory")


def run(out: Path, settings: Settings) -> Path:
    """All stages that are not done yet; returns the table's path."""
    parents, children, further = out / "parents", out / "children", out / "further"
    train(parents, settings.command(parents, settings.steps), settings.steps)
    if not children.exists():
        partial = out / "children.partial"
        breed(adapters_of(parents), partial, settings.seed)
        partial.rename(children)
    seats = [f"population.{role}s={len(ENTRANTS)}" for role in ROLES]
    command = settings.command(further, settings.further, *seats, f"population.initial_adapters={children}")
    train(further, command, settings.further)
    base = Path(RunReader(parents).config()["actor_rollout_ref"]["model"]["path"])
    (out / "scores").mkdir(exist_ok=True)
    missing = [one for one in measurements(out, base, settings.samples) if not one.result.exists()]
    with ProcessPoolExecutor(max(1, settings.workers), mp_context=get_context("spawn")) as pool:
        for number, _ in enumerate(pool.map(measure, missing), start=1):
            print(f"measured {number} of {len(missing)}", flush=True)
    path = out / "retention.md"
    write_atomically(path, table(out / "scores", settings.further))
    return path


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path)
    parser.add_argument("overrides", metavar="OVERRIDE", nargs="*", help="of both trainings")
    parser.add_argument("--steps", type=int, default=30, help="of the parents (default: 30)")
    parser.add_argument("--further", type=int, default=15, help="of the children (default: 15)")
    parser.add_argument("--samples", type=int, default=4, help="attempts at each held-out task (default: 4)")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="(default: 2e-3)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="measuring processes (default: one a core)")
    arguments = vars(parser.parse_args(argv))
    for name in ("steps", "further", "samples", "workers"):
        if arguments[name] < 1:
            parser.error(f"--{name} must be at least 1, not {arguments[name]}")
    out, overrides = arguments.pop("out").absolute(), tuple(arguments.pop("overrides"))
    settings = Settings(**arguments, overrides=overrides)
    try:
        with locked(out):
            check_settings(out, settings)
            signal.signal(signal.SIGTERM, _interrupt)
            path = run(out, settings)
            print(path.read_text())
            print(path)
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (StudyError, UsageError, RunDirError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_SETTINGS
    return OK


if __name__ == "__main__":
    sys.exit(main())
