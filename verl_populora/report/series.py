"""From metrics of a run to the series of a panel."""

from collections.abc import Callable, Sequence

from verl_populora.report.data import RunData, mean_of, natural, seat_order
from verl_populora.report.spec import LineFigure, Panel, Series, Style

PARTS = 7  # parts of a stack with a colour of their own; the rest is summed up

SeriesOf = Callable[[RunData], tuple[Series, ...]]
Range = tuple[float | None, float | None]


def figure(
    runs: Sequence[RunData],
    identity: str,
    title: str,
    question: str,
    unit: str,
    series: SeriesOf,
    style: Style = Style.LINES,
    y_range: Range = (None, None),
    smooth: int = 0,
) -> LineFigure:
    """A line figure with one panel a run."""
    panels = tuple(Panel(run.name, run.steps, series(run), evolution_steps(run)) for run in runs)
    return LineFigure(identity, title, question, unit, panels, style, y_range, smooth)


def evolution_steps(run: RunData) -> tuple[int, ...]:
    return tuple(record["step"] for record in run.evolutions)


def seat_colour(seat: str) -> str:
    """``teacher3`` -> ``teacher-3``; the palette knows eight of each role and starts again after them."""
    role = seat.rstrip("0123456789")
    number = int(seat[len(role) :] or 1)
    return f"{role}-{(number - 1) % 8 + 1}"


def metrics(*lines: tuple[str, str, str]) -> SeriesOf:
    """Strong lines of (metric, label, colour); what a run does not hold is left out."""

    def series(run: RunData) -> tuple[Series, ...]:
        return tuple(
            Series(label, colour, run.series(metric), metric, strong=True)
            for metric, label, colour in lines
            if run.has(metric)
        )

    return series


def seats(prefix: str, suffix: str, group: str | None = None, whole: str = "") -> SeriesOf:
    """One thin line a seat and, with more than one seat and a ``group`` name, a strong line for all.

    Args:
        prefix, suffix: what stands before and after the seat in the metric's name.
        group: plural name of the role.
        whole: the metric that holds the mean already; without it the mean over seats is taken.
    """

    def series(run: RunData) -> tuple[Series, ...]:
        names = [name for name in run.names(prefix) if name.endswith(suffix) and name.count("/") == 2]
        by_seat = {name[len(prefix) : -len(suffix)]: name for name in names}
        lines = [
            Series(seat, seat_colour(seat), run.series(by_seat[seat]), by_seat[seat], strong=len(names) == 1)
            for seat in sorted(by_seat, key=seat_order)
        ]
        if group is None or len(lines) < 2:
            return tuple(lines)
        values = run.series(whole) if whole else mean_of([line.values for line in lines])
        return (*lines, Series(f"all {group}", group.removesuffix("s"), values, whole, strong=True))

    return series


def proposer_rewards(run: RunData) -> tuple[Series, ...]:
    """Rewards of teachers and of the role; a single agent's own series mixes both roles and is left out."""
    names = {seat: f"member/{seat}/reward" for seat in run.seats("teacher")}
    lines = [Series(seat, seat_colour(seat), run.series(name), name) for seat, name in names.items() if run.has(name)]
    role = metrics(("role/teacher/reward", "all proposals", "teacher"))(run)
    return role if role and len(lines) < 2 else (*lines, *role)


def parts(runs: Sequence[RunData], prefix: str, without: str = "") -> SeriesOf:
    """Parts of a stack in the order of their totals over all runs, so that a colour means the same in each.

    Args:
        without: a metric with the prefix that is no part.
    """
    totals = {name: sum(run.total(name) for run in runs) for run in runs for name in run.names(prefix)}
    ordered = sorted((name for name in totals if totals[name] > 0 and name != without), key=lambda n: -totals[n])
    shown, rest = ordered[:PARTS], ordered[PARTS:]

    def series(run: RunData) -> tuple[Series, ...]:
        lines = [
            Series(name.removeprefix(prefix), f"part-{number}", run.series(name), name)
            for number, name in enumerate(shown, start=1)
            if run.has(name)
        ]
        if rest:
            rows = zip(*map(run.series, rest), strict=True)
            sums = tuple(sum(value or 0.0 for value in row) for row in rows)
            lines.append(Series(f"{len(rest)} other", "part-8", sums))
        return tuple(lines)

    return series


def kinds(runs: Sequence[RunData]) -> SeriesOf:
    """Solve rate of each task kind; a kind has the same colour in every run."""
    names = {name for run in runs for name in run.names("tasks/")}
    ordered = sorted((name for name in names if name.count("/") == 2 and name.endswith("/solve_rate")), key=natural)
    return metrics(*((name, name.split("/")[1], f"part-{n}") for n, name in enumerate(ordered, start=1)))
