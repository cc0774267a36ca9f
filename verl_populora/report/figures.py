"""The figures of the report but for the population's: the overview, the curriculum, what it cost."""

from collections.abc import Callable, Sequence

from verl_populora.report.data import RunData
from verl_populora.report.series import figure, kinds, metrics, parts, proposer_rewards, seats
from verl_populora.report.spec import LineFigure, Panel, Series, Style, Values
from verl_populora.report.verdict import complexity_index

SMOOTH = 5  # steps of the running mean of noisy single series
SHARE = (0.0, 1.0)
POSITIVE = (0.0, None)

COMPLEXITY = {
    "ast_depth": ("AST depth", "nodes", "Nesting of the syntax trees of valid programs."),
    "cyclomatic": ("Cyclomatic complexity", "paths", "Decision points of valid programs, plus one."),
    "lines": ("Program length", "lines", "Lines of code of valid programs."),
    "variables": ("Variables", "names", "Distinct names that valid programs bind."),
}


def overview(runs: Sequence[RunData], window: int) -> list[LineFigure]:
    """The three quantities that answer the report's question, all runs in one panel each."""
    return [
        LineFigure(
            "overview_complexity",
            "Complexity",
            f"Mean of four measures, relative to the first {window} steps. Above 1: programs get harder.",
            "index",
            _together(runs, lambda run: complexity_index(run, window)),
            smooth=SMOOTH,
        ),
        LineFigure(
            "overview_coverage",
            "Coverage",
            "Distinct program structures so far. Flat: teachers repeat themselves.",
            "structures",
            _together(runs, lambda run: run.series("coverage/total"), "coverage/total"),
            y_range=POSITIVE,
        ),
        LineFigure(
            "overview_solve_rate",
            "Solve rate",
            "Mean over valid tasks. Stuck near 1: tasks are too easy to teach.",
            "share",
            _together(runs, lambda run: run.series("tasks/solve_rate"), "tasks/solve_rate"),
            y_range=SHARE,
            smooth=SMOOTH,
        ),
    ]


def curriculum(runs: Sequence[RunData]) -> list[LineFigure]:
    """What students meet and how they fare."""
    return [*_solving(runs), *_proposing(runs), *_programs(runs)]


def cost(runs: Sequence[RunData]) -> list[LineFigure]:
    """Where the time goes and what the responses cost."""
    return [
        figure(
            runs,
            "time",
            "Time by phase",
            "Phases that overlap are counted in each.",
            "seconds a step",
            parts(runs, "time/", without="time/step"),
            Style.STACK,
            POSITIVE,
        ),
        figure(
            runs,
            "time_step",
            "Time of a step",
            "From its first prompt to its last write.",
            "seconds",
            metrics(("time/step", "step", "neutral")),
            y_range=POSITIVE,
        ),
        figure(
            runs,
            "response_length",
            "Response length",
            "Does anybody's answer grow without bound?",
            "tokens",
            seats("member/", "/response_length"),
            y_range=POSITIVE,
        ),
    ]


def _solving(runs: Sequence[RunData]) -> list[LineFigure]:
    return [
        figure(
            runs,
            "solve_rate",
            "Solve rate by student",
            "Do students fall back when teachers find harder tasks, and recover? Task kinds in turn swing it, too.",
            "share of attempts",
            seats("student/", "/solve_rate", "students"),
            y_range=SHARE,
        ),
        figure(
            runs,
            "difficulty",
            "Difficulty of valid tasks",
            "Only mixed tasks teach: some attempts solve them, some do not.",
            "share of valid tasks",
            metrics(
                ("tasks/solved_rate", "always solved", "solved"),
                ("tasks/mixed_rate", "mixed", "mixed"),
                ("tasks/unsolved_rate", "never solved", "unsolved"),
            ),
            Style.STACK,
            SHARE,
        ),
        figure(
            runs,
            "solve_rate_by_kind",
            "Solve rate by task kind",
            "Does one kind carry the whole curriculum?",
            "share",
            kinds(runs),
            y_range=SHARE,
            smooth=SMOOTH,
        ),
        figure(
            runs,
            "entropy",
            "Policy entropy",
            "Near 0: a member always says the same.",
            "nats a token",
            seats("member/", "/entropy"),
            y_range=POSITIVE,
        ),
    ]


def _proposing(runs: Sequence[RunData]) -> list[LineFigure]:
    return [
        figure(
            runs,
            "teacher_reward",
            "Proposer reward",
            "High: tasks are valid, and hard but not too hard.",
            "mean reward",
            proposer_rewards,
        ),
        figure(
            runs,
            "valid_rate",
            "Valid proposals",
            "Does a teacher lose the format or the language?",
            "share of proposals",
            seats("teacher/", "/valid_rate", "teachers", whole="tasks/valid_rate"),
            y_range=SHARE,
        ),
        figure(
            runs,
            "invalid",
            "Why proposals are invalid",
            "Which rule is broken most?",
            "proposals a step",
            parts(runs, "invalid/"),
            Style.STACK,
            POSITIVE,
        ),
    ]


def _programs(runs: Sequence[RunData]) -> list[LineFigure]:
    measured = [
        figure(
            runs,
            f"complexity_{name}",
            title,
            question,
            unit,
            metrics((f"complexity/{name}", "valid programs", "proposer")),
            smooth=SMOOTH,
        )
        for name, (title, unit, question) in COMPLEXITY.items()
    ]
    return [
        *measured,
        figure(
            runs,
            "coverage_new",
            "New program structures",
            "Clusters of structure seen for the first time in a step.",
            "structures a step",
            metrics(("coverage/new", "new", "proposer")),
            y_range=POSITIVE,
            smooth=SMOOTH,
        ),
        figure(
            runs,
            "coverage_distinct",
            "Variety within a step",
            "Near 0: copies of a few programs.",
            "share of valid programs",
            metrics(("coverage/distinct_rate", "distinct structures", "proposer")),
            y_range=SHARE,
            smooth=SMOOTH,
        ),
    ]


def _together(runs: Sequence[RunData], values: Callable[[RunData], Values], metric: str = "") -> tuple[Panel, ...]:
    """One panel with a line a run; runs of unequal length are filled up with None."""
    steps = tuple(sorted({step for run in runs for step in run.steps}))
    series = []
    for number, run in enumerate(runs, start=1):
        by_step = dict(zip(run.steps, values(run), strict=True))
        aligned = tuple(by_step.get(step) for step in steps)
        series.append(Series(run.name, f"run-{(number - 1) % 8 + 1}", aligned, metric, strong=True))
    return (Panel("all runs" if len(runs) > 1 else runs[0].name, steps, tuple(series)),)
