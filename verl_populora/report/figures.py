"""The figures of the report, built from run data: the overview, the curriculum, what it cost."""

from collections.abc import Callable, Iterable, Sequence

from verl_populora.report.data import RunData, mean_of, seat_order
from verl_populora.report.spec import Figure, LineFigure, Panel, Series, Style
from verl_populora.report.verdict import complexity_index

SMOOTH = 5  # steps of the running mean of noisy single series
PARTS = 7  # parts of a stack with their own colour; the rest is summed up

COMPLEXITY = {
    "ast_depth": ("AST depth", "nodes", "Nesting of the syntax trees of valid programs."),
    "cyclomatic": ("Cyclomatic complexity", "paths", "Decision points of valid programs, plus one."),
    "lines": ("Program length", "lines", "Lines of code of valid programs."),
    "variables": ("Variables", "names", "Distinct names that valid programs bind."),
}


def overview(runs: Sequence[RunData], window: int) -> list[LineFigure]:
    """The three quantities that answer the report's question, all runs in one panel each."""

    def together(values: Callable[[RunData], tuple[float | None, ...]], metric: str) -> tuple[Panel, ...]:
        """One panel; runs of unequal length are filled up with None."""
        steps = tuple(sorted({step for run in runs for step in run.steps}))
        series = []
        for number, run in enumerate(runs, start=1):
            by_step = dict(zip(run.steps, values(run), strict=True))
            aligned = tuple(by_step.get(step) for step in steps)
            series.append(Series(run.name, f"run-{(number - 1) % 8 + 1}", aligned, metric, strong=True))
        return (Panel("all runs" if len(runs) > 1 else runs[0].name, steps, tuple(series)),)

    return [
        LineFigure(
            "overview_complexity",
            "Complexity",
            f"Mean of four measures, relative to the first {window} steps. Above 1: programs get harder.",
            "index",
            together(lambda run: complexity_index(run, window), ""),
            smooth=SMOOTH,
        ),
        LineFigure(
            "overview_coverage",
            "Coverage",
            "Distinct program structures so far. Flat: teachers repeat themselves.",
            "structures",
            together(lambda run: run.series("coverage/total"), "coverage/total"),
            y_range=(0.0, None),
        ),
        LineFigure(
            "overview_solve_rate",
            "Solve rate",
            "Mean over valid tasks. Stuck near 1: tasks are too easy to teach.",
            "share",
            together(lambda run: run.series("tasks/solve_rate"), "tasks/solve_rate"),
            y_range=(0.0, 1.0),
            smooth=SMOOTH,
        ),
    ]


def curriculum(runs: Sequence[RunData]) -> list[Figure]:
    """What students meet and how they fare."""
    figures: list[Figure] = [
        _figure(
            runs,
            "solve_rate",
            "Solve rate by student",
            "Do students fall back when teachers find harder tasks, and recover?",
            "share of attempts",
            lambda run: _seats(run, "student/", "/solve_rate", "students"),
            y_range=(0.0, 1.0),
        ),
        _figure(
            runs,
            "difficulty",
            "Difficulty of valid tasks",
            "Only mixed tasks teach: some attempts solve them, some do not.",
            "share of valid tasks",
            lambda run: _metrics(
                run,
                ("tasks/solved_rate", "always solved", "solved"),
                ("tasks/mixed_rate", "mixed", "mixed"),
                ("tasks/unsolved_rate", "never solved", "unsolved"),
            ),
            style=Style.STACK,
            y_range=(0.0, 1.0),
        ),
        _figure(
            runs,
            "teacher_reward",
            "Proposer reward",
            "1 - solve rate for a valid task, 0 for one that nobody solves, -1 for an invalid one.",
            "mean reward",
            _proposer_rewards,
        ),
        _figure(
            runs,
            "valid_rate",
            "Valid proposals",
            "Does a teacher lose the format or the language?",
            "share of proposals",
            lambda run: _seats(run, "teacher/", "/valid_rate", "teachers", whole="tasks/valid_rate"),
            y_range=(0.0, 1.0),
        ),
        _figure(
            runs,
            "invalid",
            "Why proposals are invalid",
            "Which rule is broken most?",
            "proposals a step",
            lambda run: _parts(run, run.names("invalid/"), "invalid/"),
            style=Style.STACK,
            y_range=(0.0, None),
        ),
    ]
    for name, (title, unit, question) in COMPLEXITY.items():
        metric = f"complexity/{name}"
        figures.append(
            _figure(
                runs,
                f"complexity_{name}",
                title,
                question,
                unit,
                lambda run, metric=metric: _metrics(run, (metric, "valid programs", "proposer")),
                smooth=SMOOTH,
            )
        )
    figures.append(
        _figure(
            runs,
            "coverage_new",
            "New program structures",
            "Clusters of structure seen for the first time in a step.",
            "structures a step",
            lambda run: _metrics(run, ("coverage/new", "new", "proposer")),
            y_range=(0.0, None),
            smooth=SMOOTH,
        )
    )
    figures.append(
        _figure(
            runs,
            "coverage_distinct",
            "Variety within a step",
            "Near 0: copies of a few programs.",
            "share of valid programs",
            lambda run: _metrics(run, ("coverage/distinct_rate", "distinct structures", "proposer")),
            y_range=(0.0, 1.0),
            smooth=SMOOTH,
        )
    )
    figures.append(
        _figure(
            runs,
            "entropy",
            "Policy entropy",
            "Near 0: a member always says the same.",
            "nats a token",
            lambda run: _seats(run, "member/", "/entropy", None),
            y_range=(0.0, None),
        )
    )
    return [*figures, *_by_kind(runs)]


def cost(runs: Sequence[RunData]) -> list[Figure]:
    """Where the time goes and what the responses cost."""

    def phases(run: RunData) -> tuple[Series, ...]:
        return _parts(run, [name for name in run.names("time/") if name != "time/step"], "time/")

    return [
        _figure(
            runs,
            "time",
            "Time by phase",
            "Phases that overlap are counted in each.",
            "seconds a step",
            phases,
            style=Style.STACK,
            y_range=(0.0, None),
        ),
        _figure(
            runs,
            "time_step",
            "Time of a step",
            "From its first prompt to its last write.",
            "seconds",
            lambda run: _metrics(run, ("time/step", "step", "neutral")),
            y_range=(0.0, None),
        ),
        _figure(
            runs,
            "response_length",
            "Response length",
            "Does anybody's answer grow without bound?",
            "tokens",
            lambda run: _seats(run, "member/", "/response_length", None),
            y_range=(0.0, None),
        ),
    ]


def seat_colour(seat: str) -> str:
    """``teacher3`` -> ``teacher-3``; the palette knows eight of each role and starts again after them."""
    role = seat.rstrip("0123456789")
    number = int(seat[len(role) :] or 1)
    return f"{role}-{(number - 1) % 8 + 1}"


def _figure(
    runs: Sequence[RunData],
    identity: str,
    title: str,
    question: str,
    unit: str,
    series: Callable[[RunData], tuple[Series, ...]],
    style: Style = Style.LINES,
    y_range: tuple[float | None, float | None] = (None, None),
    smooth: int = 0,
) -> LineFigure:
    panels = tuple(Panel(run.name, run.steps, series(run), evolution_steps(run)) for run in runs)
    return LineFigure(identity, title, question, unit, panels, style, y_range, smooth)


def evolution_steps(run: RunData) -> tuple[int, ...]:
    return tuple(record["step"] for record in run.evolutions)


def _metrics(run: RunData, *lines: tuple[str, str, str]) -> tuple[Series, ...]:
    """Series of (metric, label, colour); the metrics that the run does not hold are left out."""
    return tuple(
        Series(label, colour, run.series(metric), metric, strong=True)
        for metric, label, colour in lines
        if run.has(metric)
    )


def _seats(
    run: RunData, prefix: str, suffix: str, group: str | None, whole: str | None = None
) -> tuple[Series, ...]:
    """One thin line a seat and, with more than one seat and a ``group`` name, a strong line for their mean.

    Args:
        whole: a metric that is the mean already; without it the mean over seats is taken.
    """
    names = [name for name in run.names(prefix) if name.endswith(suffix) and name.count("/") == 2]
    seats = [name[len(prefix) : -len(suffix)] for name in names]
    alone = len(names) == 1
    lines = [
        Series(seat, seat_colour(seat), run.series(name), name, strong=alone)
        for seat, name in sorted(zip(seats, names, strict=True), key=lambda pair: seat_order(pair[0]))
    ]
    if group is None or len(lines) < 2:
        return tuple(lines)
    values = run.series(whole) if whole else mean_of([line.values for line in lines])
    mean = Series(f"all {group}", group.removesuffix("s"), values, whole or "", strong=True)
    return (*lines, mean)


def _proposer_rewards(run: RunData) -> tuple[Series, ...]:
    """Rewards of teachers and of the role; a single agent's own series mixes both roles and is left out."""
    names = [f"member/{seat}/reward" for seat in run.seats("teacher")]
    lines = [
        Series(seat, seat_colour(seat), run.series(name), name)
        for seat, name in zip(run.seats("teacher"), names, strict=True)
        if run.has(name)
    ]
    metric = "role/teacher/reward"
    role = (
        [Series("all proposals", "teacher", run.series(metric), metric, strong=True)]
        if run.has(metric)
        else []
    )
    return tuple(role if len(lines) < 2 and role else lines + role)


def _parts(run: RunData, metrics: Iterable[str], prefix: str) -> tuple[Series, ...]:
    """Parts of a stack, the largest first; beyond `PARTS` the small ones are one part."""
    ordered = sorted((name for name in metrics if run.total(name) > 0), key=lambda name: -run.total(name))
    parts = [
        Series(name.removeprefix(prefix), f"part-{number}", run.series(name), name)
        for number, name in enumerate(ordered[:PARTS], start=1)
    ]
    rest = ordered[PARTS:]
    if rest:
        sums = tuple(
            sum(value or 0.0 for value in values) for values in zip(*map(run.series, rest), strict=True)
        )
        parts.append(Series(f"{len(rest)} other", "part-8", sums))
    return tuple(parts)


def _by_kind(runs: Sequence[RunData]) -> list[Figure]:
    """Solve rate by task kind, when a run has more than one kind."""

    def kinds(run: RunData) -> tuple[Series, ...]:
        names = [
            name for name in run.names("tasks/") if name.count("/") == 2 and name.endswith("/solve_rate")
        ]
        return tuple(
            Series(name.split("/")[1], f"part-{number}", run.series(name), name, strong=True)
            for number, name in enumerate(names, start=1)
        )

    figure = _figure(
        runs,
        "solve_rate_by_kind",
        "Solve rate by task kind",
        "Does one kind carry the whole curriculum?",
        "share",
        kinds,
        y_range=(0.0, 1.0),
    )
    return [figure] if any(panel.series for panel in figure.panels) else []
