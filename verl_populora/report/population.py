"""Figures of the population: the arms race, who met whom, descent, diversity."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from verl_populora.report.data import RunData, mean_of, natural, seat_of, seat_order
from verl_populora.report.series import evolution_steps, seat_colour
from verl_populora.report.spec import (
    Figure,
    Life,
    LineFigure,
    Matrix,
    MatrixFigure,
    Outcome,
    Panel,
    Series,
    Tree,
    TreeFigure,
)
from verl_populora.rundir import Record

ROLES = ("teacher", "student")


def population(runs: Sequence[RunData]) -> list[Figure]:
    """The figures that need more than one member."""
    return [arms_race(runs), match_matrix(runs), lineage_tree(runs), diversity(runs), distances(runs)]


def arms_race(runs: Sequence[RunData]) -> LineFigure:
    """Ratings of all seats, the mean of each role with its mean sigma, and all matches by teacher."""
    return LineFigure(
        "arms_race",
        "Arms race",
        "Do the roles take turns in the lead? Band: mean sigma. Below: each teacher's matches.",
        "rating mu",
        tuple(_race(run) for run in runs),
    )


def match_matrix(runs: Sequence[RunData]) -> MatrixFigure:
    return MatrixFigure(
        "match_matrix",
        "Who met whom",
        "Mean solve rate of the student in all their matches, and how many there were.",
        "solve rate",
        tuple(_met(run) for run in runs),
        low=0.0,
        high=1.0,
    )


def lineage_tree(runs: Sequence[RunData]) -> TreeFigure:
    names = sorted({record["lineage"]["operator"] for run in runs for record in run.lineage})
    founders_first = sorted(names, key=lambda name: (name != "init", name))
    colours = {name: "neutral" if name == "init" else f"part-{number}" for number, name in enumerate(founders_first)}
    return TreeFigure(
        "lineage",
        "Descent",
        "A lane a seat; a bar a member, coloured by the operator that made it; lines come from its parents.",
        "step",
        tuple(_tree(run, colours) for run in runs),
        tuple(colours.items()),
    )


def diversity(runs: Sequence[RunData]) -> LineFigure:
    """Mean pairwise distance between adapters of a role at each evolution."""
    return LineFigure(
        "diversity",
        "Diversity of adapters",
        "Falling: members become copies of each other. Measured at evolutions.",
        "mean distance",
        tuple(_diversity(run) for run in runs),
        y_range=(0.0, None),
    )


def distances(runs: Sequence[RunData]) -> MatrixFigure:
    panels = tuple(_distances(run) for run in runs)
    values = [value for panel in panels for row in panel.values for value in row if value is not None]
    return MatrixFigure(
        "distances",
        "Distance between adapters",
        "Pairwise, at the last evolution.",
        "distance",
        panels,
        low=0.0,
        high=max(values, default=0.0) or 1.0,
    )


def _race(run: RunData) -> Panel:
    seats = {role: [seat for seat in run.seats(role) if run.has(f"member/{seat}/mu")] for role in ROLES}
    lines: list[Series] = []
    for names in seats.values():
        if len(names) > 1:
            lines += [
                Series(seat, seat_colour(seat), run.series(f"member/{seat}/mu"), f"member/{seat}/mu") for seat in names
            ]
    for role, names in seats.items():
        if names:
            mu = mean_of([run.series(f"member/{seat}/mu") for seat in names])
            sigma = mean_of([run.series(f"member/{seat}/sigma") for seat in names])
            metric = f"member/{names[0]}/mu" if len(names) == 1 else ""
            label = names[0] if len(names) == 1 else f"all {role}s"
            lines.append(Series(label, role, mu, metric, strong=True, spread=sigma))
    lanes = tuple(sorted({seat_of(match["teacher"]) for match in run.matches}, key=natural))
    outcomes = tuple(
        Outcome(match["step"], lanes.index(seat_of(match["teacher"])), match["result"]) for match in run.matches
    )
    return Panel(run.name, run.steps, tuple(lines), evolution_steps(run), outcomes, lanes)


def _met(run: RunData) -> Matrix:
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for match in run.matches:
        pair = seat_of(match["teacher"]), seat_of(match["student"])
        counts[pair] += 1
        if match.get("solve_rate") is not None:
            rates[pair].append(match["solve_rate"])
    teachers = tuple(sorted({teacher for teacher, _ in counts}, key=natural))
    students = tuple(sorted({student for _, student in counts}, key=natural))

    def mean(pair: tuple[str, str]) -> float | None:
        return sum(rates[pair]) / len(rates[pair]) if rates[pair] else None

    return Matrix(
        run.name,
        teachers,
        students,
        tuple(tuple(mean((teacher, student)) for student in students) for teacher in teachers),
        tuple(tuple(f"×{counts[teacher, student]}" for student in students) for teacher in teachers),
    )


def _tree(run: RunData, colours: Mapping[str, str]) -> Tree:
    lanes = tuple(sorted({record["seat"] for record in run.lineage}, key=seat_order))
    by_seat: dict[str, list[Record]] = defaultdict(list)
    for record in sorted(run.lineage, key=lambda record: record["birth_step"]):
        by_seat[record["seat"]].append(record)
    lives = []
    for seat, records in by_seat.items():
        ends = [record["birth_step"] for record in records[1:]] + [run.last_step]
        for record, died in zip(records, ends, strict=True):
            operator = record["lineage"]["operator"]
            lives.append(
                Life(
                    record["name"],
                    lanes.index(seat),
                    record["birth_step"],
                    max(died, record["birth_step"]),
                    operator,
                    colours[operator],
                    tuple(record["lineage"]["parents"]),
                )
            )
    return Tree(run.name, lanes, tuple(lives), run.last_step)


def _diversity(run: RunData) -> Panel:
    steps = evolution_steps(run)
    series = []
    for role in ROLES:
        values = tuple(_mean_distance(record["diversity"]["pairs"], role) for record in run.evolutions)
        if any(value is not None for value in values):
            series.append(Series(f"{role}s", role, values, strong=True))
    return Panel(run.name, steps, tuple(series))


def _distances(run: RunData) -> Matrix:
    if not run.evolutions:
        return Matrix(run.name, (), (), ())
    pairs = run.evolutions[-1]["diversity"]["pairs"]
    between = {frozenset((pair["first"], pair["second"])): pair["distance"] for pair in pairs}
    seats = tuple(sorted({seat for pair in between for seat in pair}, key=seat_order))
    values = tuple(tuple(between.get(frozenset((row, column))) for column in seats) for row in seats)
    return Matrix(run.name, seats, seats, values)


def _mean_distance(pairs: Sequence[Record], role: str) -> float | None:
    """Over pairs of one role; a pair with an adapter that is still zero has no distance."""
    found = [
        pair["distance"]
        for pair in pairs
        if pair["first"].startswith(role) and pair["second"].startswith(role) and pair["distance"] is not None
    ]
    return sum(found) / len(found) if found else None
