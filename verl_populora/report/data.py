"""A run directory as the report uses it: series by metric, seats by role, members, recent tasks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_populora.rundir import Record, RunReader

GENERATION = re.compile(r"-g\d+$")
NUMBER = re.compile(r"(\d+)")


@dataclass(frozen=True)
class RunData:
    """Everything the report reads of one run, in memory."""

    name: str
    path: Path
    config: Record
    info: Record
    history: tuple[Record, ...]  # one object a step, ascending
    matches: tuple[Record, ...]
    lineage: tuple[Record, ...]
    evolutions: tuple[Record, ...]
    proposals: tuple[Record, ...]  # of the last recorded steps
    heldout: Record = field(default_factory=dict)  # heldout.json; empty where nothing was measured

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(row["step"] for row in self.history)

    @property
    def last_step(self) -> int:
        return self.steps[-1] if self.history else 0

    def series(self, metric: str) -> tuple[float | None, ...]:
        """One value a step; None where the step does not hold the metric."""
        return tuple(row.get(metric) for row in self.history)

    def has(self, metric: str) -> bool:
        return any(row.get(metric) is not None for row in self.history)

    def total(self, metric: str) -> float:
        return sum(value for value in self.series(metric) if value is not None)

    def names(self, prefix: str) -> list[str]:
        """Metrics that start with ``prefix``, in natural order."""
        found = {name for row in self.history for name in row if name.startswith(prefix)}
        return sorted(found, key=natural)

    def seats(self, role: str) -> list[str]:
        """Seats of a role ("teacher", "student", "agent") that have metrics or a birth."""
        from_metrics = {name.split("/")[1] for name in self.names("member/")}
        born = {record["seat"] for record in self.lineage}
        return sorted((seat for seat in from_metrics | born if seat.startswith(role)), key=natural)


def load_run(path: str | Path, name: str | None = None, task_steps: int = 10) -> RunData:
    """Read a run directory, also one that is still being written.

    A step counts when its metrics are there: they are written last, and what the other files hold of a later step
    is not shown yet.

    Args:
        path: the directory.
        name: how the report calls it; the directory's name by default.
        task_steps: of how many of the last recorded steps to read the proposals.

    Raises:
        RunDirError: it is not a run directory, or a file in it is damaged.
    """
    reader = RunReader(path)
    history = reader.metrics()
    last = history[-1]["step"] if history else 0
    steps = [step for step in reader.task_steps() if step <= last][-task_steps:]
    return RunData(
        name=name or reader.path.resolve().name,
        path=reader.path,
        config=reader.config(),
        info=reader.run_info(),
        history=tuple(history),
        matches=_until(last, "step", reader.matches()),
        lineage=_until(last, "birth_step", reader.lineage()),
        evolutions=_until(last, "step", reader.evolution()),
        proposals=tuple(record for step in steps for record in reader.tasks(step)),
        heldout=reader.heldout(),
    )


def _until(last_step: int, field: str, records: Sequence[Record]) -> tuple[Record, ...]:
    return tuple(record for record in records if record[field] <= last_step)


def seat_of(member_name: str) -> str:
    """``teacher1-g2`` -> ``teacher1``."""
    return GENERATION.sub("", member_name)


def natural(text: str) -> list[str | int]:
    """Sort key that puts ``teacher10`` after ``teacher9``."""
    return [int(part) if part.isdigit() else part for part in NUMBER.split(text)]


def seat_order(seat: str) -> tuple[bool, list[str | int]]:
    """Sort key: teachers, then the others, by number within a role."""
    return (not seat.startswith("teacher"), natural(seat))


def mean_of(rows: Sequence[Sequence[float | None]]) -> tuple[float | None, ...]:
    """Step-wise mean over series, of the values that are there."""
    means: list[float | None] = []
    for values in zip(*rows, strict=True):
        present = [value for value in values if value is not None]
        means.append(sum(present) / len(present) if present else None)
    return tuple(means)


def unique_names(paths: Sequence[Path]) -> Mapping[Path, str]:
    """A short name for each run: as few of the last path parts as tell the runs apart."""
    parts = {path: path.resolve().parts for path in paths}
    for depth in range(1, max(map(len, parts.values()), default=1) + 1):
        names = {path: "/".join(part[-depth:]) for path, part in parts.items()}
        if len(set(names.values())) == len(paths):
            return names
    raise ValueError("the same run directory is given twice: " + ", ".join(map(str, paths)))
