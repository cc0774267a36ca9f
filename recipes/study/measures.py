"""From a run directory to the numbers that the study compares."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from verl_populora.report.cost_table import generated_by_seat, member_costs
from verl_populora.report.data import RunData, load_run
from verl_populora.rundir import Record, RunDirError, RunReader

DECODINGS = ("greedy", "sampled")


@dataclass(frozen=True, slots=True)
class Course:
    """A quantity at the start and at the end of a run: means over its first and last quarter of steps."""

    first: float
    last: float

    @property
    def change(self) -> float:
        return self.last - self.first


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Shares of held-out tasks solved; by decoding. Best and weakest are chosen on these very tasks."""

    base: float  # every founder before training
    mean: float
    best: float
    weakest: float
    teachers: float | None  # None without the role
    students: float | None


@dataclass(frozen=True, slots=True)
class Cost:
    adapters: int
    steps: int
    samples: float  # proposals and attempts that were generated
    generated: float  # response tokens of them
    trained: float  # response tokens that were trained on
    updates: float  # optimiser steps of an adapter, mean over adapters
    seconds: float  # wall-clock in steps


@dataclass(frozen=True, slots=True)
class Measures:
    """One run."""

    budget: str
    curriculum: dict[str, Course]  # by label; what was not recorded is absent
    heldout: dict[str, HeldOut]  # by decoding; empty without a measurement
    cost: Cost


def _series(metric: str) -> Callable[[RunData], Sequence[float | None]]:
    return lambda run: run.series(metric)


def _new_clusters(run: RunData) -> list[float | None]:
    """New clusters of program structure for 100 valid tasks: arms may write different numbers of tasks."""
    return [
        None if new is None or not valid else 100 * new / valid
        for new, valid in zip(run.series("coverage/new"), run.series("tasks/valid"), strict=True)
    ]


CURRICULUM: dict[str, Callable[[RunData], Sequence[float | None]]] = {
    "solve rate of proposed tasks": _series("tasks/solve_rate"),
    "share of tasks solved sometimes": _series("tasks/mixed_rate"),
    "share of tasks never solved": _series("tasks/unsolved_rate"),
    "valid proposals": _series("tasks/valid_rate"),
    "AST depth": _series("complexity/ast_depth"),
    "lines": _series("complexity/lines"),
    "cyclomatic complexity": _series("complexity/cyclomatic"),
    "variables": _series("complexity/variables"),
    "new structures for 100 valid tasks": _new_clusters,
    "distinct structures among valid": _series("coverage/distinct_rate"),
    "proposer reward": _series("role/teacher/reward"),
    "solver reward": _series("role/student/reward"),
}


def read_measures(path: Path) -> Measures:
    """Measures of a run that has recorded steps, finished or not.

    Raises:
        RunDirError: it is not a run directory, or holds no step yet.
    """
    run = load_run(path, task_steps=0)
    if not run.history:
        raise RunDirError(f"{path}: no step has been recorded yet")
    curriculum = {label: course(series(run)) for label, series in CURRICULUM.items()}
    return Measures(
        str(run.config.get("population", {}).get("budget", "")),
        {label: found for label, found in curriculum.items() if found is not None},
        {decoding: _held_out(run.heldout, decoding) for decoding in DECODINGS} if run.heldout else {},
        _cost(run, RunReader(path)),
    )


def course(values: Sequence[float | None]) -> Course | None:
    """Means over the first and the last quarter (at least one step each); None where a quarter has no value."""
    window = max(1, len(values) // 4)
    first, last = ([v for v in part if v is not None] for part in (values[:window], values[-window:]))
    return Course(fmean(first), fmean(last)) if first and last else None


def _held_out(record: Record, decoding: str) -> HeldOut:
    scores = {member["name"]: member["accuracy"][decoding]["all"] for member in record["after"]}
    by_role = {
        role: [scores[m["name"]] for m in record["after"] if m["role"] == role] for role in ("teacher", "student")
    }
    return HeldOut(
        base=record["before"]["accuracy"][decoding]["all"],
        mean=fmean(scores.values()),
        best=max(scores.values()),
        weakest=min(scores.values()),
        teachers=fmean(by_role["teacher"]) if by_role["teacher"] else None,
        students=fmean(by_role["student"]) if by_role["student"] else None,
    )


def _cost(run: RunData, reader: RunReader) -> Cost:
    costs = list(member_costs(run))
    generated = generated_by_seat(reader).values()
    return Cost(
        adapters=len(costs),
        steps=run.last_step,
        samples=sum(one.samples for one in generated),
        generated=sum(one.tokens for one in generated),
        trained=sum(one.tokens for one in costs),
        updates=fmean(one.updates or 0.0 for one in costs) if costs else 0.0,
        seconds=run.total("time/step"),
    )
