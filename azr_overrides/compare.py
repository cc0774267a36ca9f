"""python -m azr_overrides.compare BASE_RUN POPULATION_RUN: what two runs took and what came of it, side by
side.

Compute is given for each adapter, since that is how populations and the single agent are matched. Curriculum
measures are means over the first and over the last steps. Benchmarks are shown where an evaluation exists:
``eval`` inside a run directory, or the folders given by ``--eval``.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.types import UsageError
from verl_populora.report.cost_table import duration, generated_by_seat, member_costs
from verl_populora.report.data import RunData, load_run
from verl_populora.rundir import RunDirError, RunReader

NOT_RECORDED = "–"


@dataclass(frozen=True, slots=True)
class Spread:
    """One number for each adapter."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    def text(self) -> str:
        if len(self.values) == 1:
            return f"{self.mean:,.0f}"
        return f"{self.mean:,.0f} ({min(self.values):,.0f} to {max(self.values):,.0f})"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What one run took and what came of it. None: not recorded."""

    name: str
    steps: int
    seats: tuple[str, ...]
    budget: str
    generated: Spread | None  # response tokens, by adapter
    trained: Spread | None
    updates: Spread | None
    seconds: float | None  # in steps
    first: dict[str, float]  # metric -> mean over the first steps
    last: dict[str, float]
    structures: float | None  # clusters of program structure seen
    valid_tasks: float


# Label, metric, whether it is a share.
CURRICULUM = (
    ("valid rate", "tasks/valid_rate", True),
    ("solve rate", "tasks/solve_rate", True),
    ("tasks at 0 < solve rate < 1", "tasks/mixed_rate", True),
    ("AST depth", "complexity/ast_depth", False),
    ("cyclomatic complexity", "complexity/cyclomatic", False),
    ("lines", "complexity/lines", False),
    ("variables", "complexity/variables", False),
    ("distinct structures among valid", "coverage/distinct_rate", True),
)


def summarise(path: str | Path, window: int) -> RunSummary:
    """Read a run directory, also one in progress.

    Args:
        window: over how many of the first and of the last steps curriculum measures are averaged.

    Raises:
        RunDirError: it is not a run directory, or holds no step yet.
    """
    run = load_run(path, task_steps=0)
    if not run.history:
        raise RunDirError(f"{path}: no step has been recorded yet")
    costs = list(member_costs(run))
    updates = [cost.updates for cost in costs if cost.updates is not None]
    population = run.config.get("population", {})
    return RunSummary(
        name=run.name,
        steps=run.last_step,
        seats=tuple(cost.seat for cost in costs),
        budget=str(population.get("budget", "")) if population.get("teachers") else "",
        generated=_generated_tokens(RunReader(path), [cost.seat for cost in costs]),
        trained=Spread(tuple(cost.tokens for cost in costs)) if costs else None,
        updates=Spread(tuple(updates)) if updates else None,
        seconds=run.total("time/step") or None,
        first=_means(run, slice(0, window)),
        last=_means(run, slice(-window, None)),
        structures=next((v for v in reversed(run.series("coverage/total")) if v is not None), None),
        valid_tasks=run.total("tasks/valid"),
    )


def _generated_tokens(reader: RunReader, seats: Sequence[str]) -> Spread | None:
    """Response tokens of every recorded proposal and attempt, whether it was trained on or not."""
    generated = generated_by_seat(reader)
    if not generated or not seats:
        return None
    return Spread(tuple(generated[seat].tokens if seat in generated else 0 for seat in seats))


def _means(run: RunData, window: slice) -> dict[str, float]:
    means = {}
    for _, metric, _ in CURRICULUM:
        values = [value for value in run.series(metric)[window] if value is not None]
        if values:
            means[metric] = sum(values) / len(values)
    return means


def table(base: RunSummary, population: RunSummary, window: int) -> str:
    """A Markdown table of two runs; the last column is population / base."""
    rows = [
        ("", base.name, population.name, "ratio"),
        ("adapters", str(len(base.seats)), str(len(population.seats)), _ratio(len(base.seats), len(population.seats))),
        ("steps", str(base.steps), str(population.steps), _ratio(base.steps, population.steps)),
        ("budget", base.budget or NOT_RECORDED, population.budget or NOT_RECORDED, ""),
        _spread_row("tokens generated, by adapter", base, population, lambda run: run.generated),
        _spread_row("tokens trained, by adapter", base, population, lambda run: run.trained),
        _spread_row("updates, by adapter", base, population, lambda run: run.updates),
        _number_row("wall-clock in steps", base, population, lambda run: run.seconds, duration),
        _number_row("wall-clock a step", base, population, lambda run: _rate(run.seconds, run.steps), duration),
    ]
    for label, metric, is_share in CURRICULUM:
        ratio = _ratio(base.last.get(metric), population.last.get(metric))
        courses = (_course(base, metric, is_share), _course(population, metric, is_share))
        rows.append((f"{label}, first → last {window} steps", courses[0], courses[1], ratio))
    rows += [
        _number_row("program structures seen", base, population, lambda run: run.structures, "{:,.0f}".format),
        _number_row(
            "structures for 1,000 valid tasks",
            base,
            population,
            lambda run: _rate(run.structures, run.valid_tasks / 1000),
            "{:,.0f}".format,
        ),
    ]
    return _markdown(rows)


def _spread_row(
    label: str, base: RunSummary, population: RunSummary, field: Callable[[RunSummary], Spread | None]
) -> tuple[str, str, str, str]:
    first, second = field(base), field(population)
    texts = [spread.text() if spread else NOT_RECORDED for spread in (first, second)]
    return label, texts[0], texts[1], _ratio(first and first.mean, second and second.mean)


def _number_row(
    label: str,
    base: RunSummary,
    population: RunSummary,
    field: Callable[[RunSummary], float | None],
    show: Callable[[float], str],
) -> tuple[str, str, str, str]:
    first, second = field(base), field(population)
    texts = [NOT_RECORDED if value is None else show(value) for value in (first, second)]
    return label, texts[0], texts[1], _ratio(first, second)


def _course(run: RunSummary, metric: str, is_share: bool) -> str:
    texts = []
    for means in (run.first, run.last):
        value = means.get(metric)
        texts.append(NOT_RECORDED if value is None else f"{100 * value:.1f}%" if is_share else f"{value:.2f}")
    return " → ".join(texts)


def _rate(value: float | None, count: float) -> float | None:
    return None if value is None or not count else value / count


def _ratio(base: float | None, population: float | None) -> str:
    return NOT_RECORDED if base is None or population is None or base == 0 else f"{population / base:.2f}"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])


def benchmark_table(evaluations: Sequence[Path]) -> str:
    """Benchmark means with 95% intervals and paired differences, of one or several evaluations.

    Raises:
        eval.types.UsageError: a folder holds no evaluation, or the evaluations can't be compared.
    """
    from eval.render import markdown
    from eval.results import collect
    from eval.table import build_table

    return markdown(build_table([collect(path, path.parent.name or path.name) for path in evaluations]))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m azr_overrides.compare", description="Compare a single-agent run with a population's."
    )
    parser.add_argument("base", type=Path, help="run directory of the single agent")
    parser.add_argument("population", type=Path, help="run directory of the population")
    parser.add_argument("--window", type=int, default=20, help="steps at either end that are averaged (default: 20)")
    parser.add_argument(
        "--eval",
        type=Path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="evaluations; default: eval in the run directories",
    )
    arguments = parser.parse_args(argv)
    if arguments.window < 1:
        parser.error(f"--window must be at least 1, not {arguments.window}")
    try:
        base, population = (summarise(path, arguments.window) for path in (arguments.base, arguments.population))
        print(table(base, population, arguments.window))
        found = [path / "eval" for path in (arguments.base, arguments.population) if (path / "eval").is_dir()]
        evaluations = arguments.eval or found
        print(
            "\n" + benchmark_table(evaluations)
            if evaluations
            else "\nNo evaluation found; see `python -m eval --help`."
        )
    except (RunDirError, UsageError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
