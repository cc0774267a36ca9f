"""Stage ``table``: rows for base, baseline, the population and its members, and paired comparisons between them."""

from dataclasses import dataclass, field

import numpy as np

from eval.data.registry import BENCHMARKS
from eval.results import Evaluation, MemberInfo
from eval.stats import Difference, Interval, cell_interval, group_interval, mean_or_none, paired_difference
from eval.types import Group, UsageError

_SEED = 20_240_501
CODE = tuple(name for name, b in BENCHMARKS.items() if b.group is Group.CODE)
MATH = tuple(name for name, b in BENCHMARKS.items() if b.group is Group.MATH and b.in_average)
MATH_ALL = tuple(name for name, b in BENCHMARKS.items() if b.group is Group.MATH)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. A benchmark that was not run to its end has no cell."""

    label: str
    evaluation: str
    sort: str  # base, baseline, population mean, best, weakest, teachers, students or member
    members: tuple[str, ...]
    cells: dict[str, Interval]
    common: Interval | None  # mean over the benchmarks that every row has
    counts: dict[str, int] = field(default_factory=dict)  # items by benchmark

    def mean(self, names: tuple[str, ...]) -> float | None:
        return mean_or_none([cell.value if (cell := self.cells.get(name)) else None for name in names])

    @property
    def code(self) -> float | None:
        return self.mean(CODE)

    @property
    def math(self) -> float | None:
        return self.mean(MATH)

    @property
    def math_with_gsm8k(self) -> float | None:
        return self.mean(MATH_ALL)

    @property
    def overall(self) -> float | None:
        """As published: the mean of the code mean and the mathematics mean without GSM8K."""
        return mean_or_none([self.code, self.math])

    @property
    def overall_with_gsm8k(self) -> float | None:
        return mean_or_none([self.code, self.math_with_gsm8k])


@dataclass(frozen=True, slots=True)
class Comparison:
    first: str
    second: str
    by_benchmark: dict[str, Difference]
    common: Difference


@dataclass(frozen=True, slots=True)
class Table:
    rows: list[Row]
    comparisons: list[Comparison]
    common_benchmarks: list[str]
    notes: list[str]


def build_table(evaluations: list[Evaluation]) -> Table:
    """Rows of every evaluation, and paired comparisons within and between them.

    Raises UsageError if the evaluations can't be compared: other base, profile, sampling, limit or data.
    """
    _check_comparable(evaluations)
    common = [name for name in BENCHMARKS if all(name in e.complete_benchmarks() for e in evaluations)]
    rows: list[Row] = []
    for evaluation in evaluations:
        rows += _rows(evaluation, common, several=len(evaluations) > 1)
    return Table(rows, _comparisons(evaluations, rows, common), common, _notes(evaluations, common))


def _check_comparable(evaluations: list[Evaluation]) -> None:
    first = evaluations[0]
    labels = [evaluation.label for evaluation in evaluations]
    if len(set(labels)) < len(labels):
        raise UsageError(f"evaluations need different labels, these are {', '.join(labels)}; name them with LABEL=DIR")
    for other in evaluations[1:]:
        for key in ("profile", "sampling", "limit"):
            if first.run[key] != other.run[key]:
                raise UsageError(
                    f"{first.label} and {other.label} can't be compared: {key} is {first.run[key]} and {other.run[key]}"
                )
        for name in first.run["benchmarks"].keys() & other.run["benchmarks"].keys():
            if first.run["benchmarks"][name] != other.run["benchmarks"][name]:
                raise UsageError(f"{first.label} and {other.label} used different data for {BENCHMARKS[name].title}")


def _generator() -> np.random.Generator:
    """A fresh stream for each number, so that a cell does not depend on which others are shown."""
    return np.random.default_rng(_SEED)


def _scores(evaluation: Evaluation, members: tuple[str, ...], name: str) -> np.ndarray:
    """(members, items) of one benchmark."""
    ids = list(evaluation.results[members[0], name].scores)
    return np.stack([evaluation.results[member, name].vector(ids) for member in members])


def _tables(evaluation: Evaluation, members: tuple[str, ...], names: list[str]) -> dict[str, np.ndarray]:
    return {name: _scores(evaluation, members, name) for name in names}


def _row(evaluation: Evaluation, label: str, sort: str, members: tuple[str, ...], common: list[str]) -> Row:
    cells, counts = {}, {}
    for name in BENCHMARKS:
        results = [evaluation.results.get((member, name)) for member in members]
        if not all(result is not None and result.complete for result in results):
            continue
        scores = _scores(evaluation, members, name)
        counts[name] = scores.shape[1]
        if len(members) == 1:
            cells[name] = cell_interval(scores[0], _generator())
        else:
            cells[name] = group_interval({name: scores}, _generator())
    overall = group_interval(_tables(evaluation, members, common), _generator()) if common else None
    return Row(label, evaluation.label, sort, members, cells, overall, counts)


def _rows(evaluation: Evaluation, common: list[str], several: bool) -> list[Row]:
    prefix = f"{evaluation.label}: " if several else ""
    rows = []
    for member in evaluation.members:
        if member.group != "population":
            rows.append(_row(evaluation, prefix + member.name, member.group, (member.name,), common))
    population = [member for member in evaluation.members if member.group == "population"]
    if not population:
        return rows
    names = tuple(member.name for member in population)
    if len(names) > 1:
        rows.append(_row(evaluation, f"{prefix}population mean ({len(names)})", "population mean", names, common))
        for role in ("teacher", "student"):
            of_role = tuple(member.name for member in population if member.role == role)
            if of_role and len(of_role) < len(names):
                label = f"{prefix}{role}s mean ({len(of_role)})"
                rows.append(_row(evaluation, label, f"{role}s", of_role, common))
    singles = [_row(evaluation, prefix + _label(member), "member", (member.name,), common) for member in population]
    if len(singles) > 1 and common:
        ranked = sorted(singles, key=lambda row: row.common.value if row.common else 0.0)
        for sort, chosen in (("best", ranked[-1]), ("weakest", ranked[0])):
            label = f"{prefix}{sort}: {chosen.members[0]}"
            rows.append(Row(label, evaluation.label, sort, chosen.members, chosen.cells, chosen.common, chosen.counts))
    return rows + singles


def _label(member: MemberInfo) -> str:
    return f"{member.name} ({member.role})" if member.role and member.role not in member.name else member.name


def _comparisons(evaluations: list[Evaluation], rows: list[Row], common: list[str]) -> list[Comparison]:
    """Every row against its base and baseline; population means against each other."""
    if not common:
        return []
    by_label = {evaluation.label: evaluation for evaluation in evaluations}
    pairs: list[tuple[Row, Row]] = []
    for row in rows:
        for reference in rows:
            same_run = reference.evaluation == row.evaluation and reference is not row
            if (
                same_run
                and reference.sort in ("base", "baseline")
                and (row.sort, reference.sort) != ("base", "baseline")
            ):
                pairs.append((row, reference))
    means = [row for row in rows if row.sort == "population mean"] if len(evaluations) > 1 else []
    singles = {row.evaluation for row in rows if row.sort == "member"} - {row.evaluation for row in means}
    if len(evaluations) > 1:
        means += [row for row in rows if row.sort == "member" and row.evaluation in singles]
    pairs += [(second, first) for index, first in enumerate(means) for second in means[index + 1 :]]
    comparisons = []
    for first, second in pairs:
        left = _tables(by_label[first.evaluation], first.members, common)
        right = _tables(by_label[second.evaluation], second.members, common)
        by_benchmark = {
            name: paired_difference({name: left[name]}, {name: right[name]}, _generator()) for name in common
        }
        total = paired_difference(left, right, _generator())
        comparisons.append(Comparison(first.label, second.label, by_benchmark, total))
    return comparisons


def _notes(evaluations: list[Evaluation], common: list[str]) -> list[str]:
    run = evaluations[0].run
    sampling = run["sampling"]
    decoding = "greedy pass@1" if sampling["temperature"] == 0 else (
        f"mean of {sampling['samples']} samples at temperature {sampling['temperature']}"
    )  # fmt: skip
    notes = [
        f"profile {run['profile']}, {decoding}; 95% intervals: Wilson for one model, bootstrap over items and members "
        "for means"
    ]
    titles = ", ".join(BENCHMARKS[name].title for name in common)
    notes.append(f"common mean: over the benchmarks that every row has completed ({titles or 'none'})")
    notes.append(
        "code and math means, and overall (code and math in equal parts), need all their benchmarks; "
        "math is without GSM8K as published"
    )
    notes.append("best and weakest are chosen by the common mean on these very items, so best is biased upwards")
    for evaluation in evaluations:
        notes += _warnings(evaluation)
    return notes


def _warnings(evaluation: Evaluation) -> list[str]:
    run, label = evaluation.run, evaluation.label
    notes = []
    if run["limit"]:
        notes.append(f"{label}: only the first {run['limit']} problems of each benchmark")
    if run["sampling"]["max_tokens_cap"]:
        notes.append(f"{label}: answers were capped at {run['sampling']['max_tokens_cap']} tokens, below the protocol")
    if not run["pinned_data"]:
        notes.append(f"{label}: data files are not the pinned ones")
    if evaluation.isolation and evaluation.isolation != "full":
        notes.append(f"{label}: model code ran with isolation level {evaluation.isolation!r}")
    for what, count in (
        ("answers ran into the token limit", sum(r.truncated for r in evaluation.results.values())),
        (
            "prompts did not fit into the context and count as wrong",
            sum(r.too_long for r in evaluation.results.values()),
        ),
        ("answers were stopped by a grader's or program's time limit", _count(evaluation, "timeout")),
        ("answers could not be graded and count as wrong", _count(evaluation, "error")),
    ):
        if count:
            total = sum(result.graded for result in evaluation.results.values())
            notes.append(f"{label}: {count} of {total} {what}")
    missing = [r for r in evaluation.results.values() if not r.complete]
    if missing:
        names = ", ".join(sorted({BENCHMARKS[r.benchmark].title for r in missing}))
        notes.append(f"{label}: not finished, shown as not run: {names}")
    return notes


def _count(evaluation: Evaluation, status: str) -> int:
    return sum(result.statuses.get(status, 0) for result in evaluation.results.values())
