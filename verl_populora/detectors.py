"""Detectors of degenerate curricula: pure functions over the metrics of a run.

Self-play fails quietly: rewards look fine while teachers have found tasks that teach nothing. Each detector
reads the history of ``metrics.jsonl`` (see ``docs/metrics.md``), looks at a recent window of steps, for some
failures against the first window, and yields a finding that says what was seen and what to try. A metric that
a history does not hold, or holds as None, NaN or infinity, is not judged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean

History = Sequence[Mapping[str, float | None]]
"""One mapping a step, in the order of steps."""

COMPLEXITY_METRICS = ("ast_depth", "cyclomatic", "lines", "variables")


@dataclass(frozen=True, slots=True)
class DetectorSettings:
    """Thresholds. The defaults are meant to stay silent in a healthy run rather than to fire first."""

    window: int = 10  # steps that are averaged; two windows must have passed where they are compared
    easy_solve_rate: float = 0.8  # self-calibration: mean solve rate from which tasks count as easy
    complexity_drop: float = 0.1  # self-calibration: relative fall of complexity since the first window
    coverage_drop: float = 0.5  # self-calibration: relative fall of new structures a step, likewise
    min_distinct_rate: float = 0.3  # copies: share of valid programs with a structure of their own
    max_duplicate_rate: float = 0.5  # copies: share of proposals rejected as duplicates
    min_valid_rate: float = 0.1  # a teacher below this share of valid proposals teaches nothing
    max_unsolved_rate: float = 0.9  # share of valid tasks that no attempt solved
    length_growth: float = 2.0  # mean response length against the first window


@dataclass(frozen=True, slots=True)
class Finding:
    """A detector fired."""

    name: str  # counted as the metric ``warn/<name>``
    seen: str  # what was measured, one sentence
    advice: str  # what to try, one sentence

    def __str__(self) -> str:
        return f"{self.name}: {self.seen} {self.advice}"


def detect(history: History, settings: DetectorSettings | None = None) -> list[Finding]:
    """What is wrong with the curriculum at the last step of ``history``."""
    settings = settings or DetectorSettings()
    findings = (detector(history, settings) for detector in DETECTORS.values())
    return [finding for finding in findings if finding is not None]


def warning_metrics(findings: Sequence[Finding]) -> dict[str, int]:
    """``warn/<name>`` for every detector: 1 if it fired, else 0."""
    fired = {finding.name for finding in findings}
    return {f"warn/{name}": int(name in fired) for name in DETECTORS}


def self_calibration(history: History, settings: DetectorSettings) -> Finding | None:
    """Solve rate high while complexity and coverage fall: tasks are fitted to what is solved already."""
    solve_rate = _recent(history, "tasks/solve_rate", settings.window)
    coverage = _first_and_recent(history, "coverage/new", settings.window)
    complexity = complexity_change(history, settings.window)
    if solve_rate is None or coverage is None or complexity is None:
        return None
    first, recent = coverage
    narrower = recent < (1 - settings.coverage_drop) * first
    if solve_rate < settings.easy_solve_rate or complexity > -settings.complexity_drop or not narrower:
        return None
    return Finding(
        "self_calibration",
        f"{solve_rate:.0%} of attempts succeed while program complexity fell by {-complexity:.0%} and new "
        f"structures a step from {first:.1f} to {recent:.1f}: teachers write what is solved already.",
        "Use separate roles (population=1t1s or larger), reward no task that is always solved, "
        "and put references from the buffer into the teachers' prompts.",
    )


def copies(history: History, settings: DetectorSettings) -> Finding | None:
    """Most proposals repeat a few programs."""
    distinct = _recent(history, "coverage/distinct_rate", settings.window)
    duplicates = _recent_share(history, "invalid/duplicate", "tasks/proposed", settings.window)
    if duplicates is not None and duplicates > settings.max_duplicate_rate:
        seen = f"{duplicates:.0%} of proposals repeat an earlier task."
    elif distinct is not None and distinct < settings.min_distinct_rate:
        seen = f"Only {distinct:.0%} of a step's valid programs differ in structure."
    else:
        return None
    return Finding(
        "copies",
        seen,
        "Count duplicates as invalid (population.duplicate_task_reward), raise the teachers' entropy bonus "
        "or lower their learning rate, and show more and other references in their prompts.",
    )


def invalid_tasks(history: History, settings: DetectorSettings) -> Finding | None:
    """A teacher has lost the format or the language."""
    rates = _by_seat(history, "teacher/", "/valid_rate", settings.window)
    lost = {seat: rate for seat, rate in rates.items() if rate < settings.min_valid_rate}
    if not lost:
        return None
    return Finding(
        "invalid_tasks",
        f"{_listed(lost, '.0%')} of proposals valid.",
        "Read the invalid/<reason> counts: a format reason asks for a lower learning rate or a return to "
        "an earlier checkpoint, a timeout or memory reason for lower limits in the prompt.",
    )


def unsolvable_tasks(history: History, settings: DetectorSettings) -> Finding | None:
    """Hardly any task is ever solved, so neither role gets a signal."""
    unsolved = _recent(history, "tasks/unsolved_rate", settings.window)
    if unsolved is None or unsolved <= settings.max_unsolved_rate:
        return None
    return Finding(
        "unsolvable_tasks",
        f"{unsolved:.0%} of valid tasks are solved by no attempt.",
        "Keep the reward of unsolved tasks at 0, give students more attempts a task, match teachers by pfsp, "
        "or start from easier references.",
    )


def length_explosion(history: History, settings: DetectorSettings) -> Finding | None:
    """Responses grow without bound, which costs time and ends in cut answers."""
    growth = {}
    for seat in _seats(history, "member/", "/response_length"):
        lengths = _first_and_recent(history, f"member/{seat}/response_length", settings.window)
        if lengths is not None and lengths[0] > 0 and lengths[1] > settings.length_growth * lengths[0]:
            growth[seat] = lengths[1] / lengths[0]
    if not growth:
        return None
    return Finding(
        "length_explosion",
        f"{_listed(growth, '.1f')} times as many response tokens as in the first {settings.window} steps.",
        "Lower the response limit or the learning rate, check that cut responses count as malformed, "
        "and look at the longest completions in tasks/.",
    )


def complexity_change(history: History, window: int) -> float | None:
    """Relative change of complexity from the first to the last window, mean over the four measures."""
    pairs = (_first_and_recent(history, f"complexity/{name}", window) for name in COMPLEXITY_METRICS)
    changes = [recent / first - 1 for first, recent in filter(None, pairs) if first > 0]
    return fmean(changes) if changes else None


Detector = Callable[[History, DetectorSettings], Finding | None]
DETECTORS: dict[str, Detector] = {
    detector.__name__: detector
    for detector in (self_calibration, copies, invalid_tasks, unsolvable_tasks, length_explosion)
}


def _recent(history: History, metric: str, window: int) -> float | None:
    """Mean over the last ``window`` steps; None before that many steps or without a value."""
    if len(history) < window:
        return None
    values = _values(history[-window:], metric)
    return fmean(values) if values else None


def _recent_share(history: History, part: str, whole: str, window: int) -> float | None:
    if len(history) < window:
        return None
    total = sum(_values(history[-window:], whole))
    return sum(_values(history[-window:], part)) / total if total else None


def _first_and_recent(history: History, metric: str, window: int) -> tuple[float, float] | None:
    """Means over the first and the last ``window`` steps, which must not overlap."""
    if len(history) < 2 * window:
        return None
    first, recent = _values(history[:window], metric), _values(history[-window:], metric)
    return (fmean(first), fmean(recent)) if first and recent else None


def _values(history: History, metric: str) -> list[float]:
    return [value for row in history if (value := row.get(metric)) is not None and isfinite(value)]


def _seats(history: History, prefix: str, suffix: str) -> list[str]:
    names = {name for row in history for name in row if name.startswith(prefix) and name.endswith(suffix)}
    return sorted(name[len(prefix) : -len(suffix)] for name in names)


def _by_seat(history: History, prefix: str, suffix: str, window: int) -> dict[str, float]:
    seats = _seats(history, prefix, suffix)
    recent = {seat: _recent(history, f"{prefix}{seat}{suffix}", window) for seat in seats}
    return {seat: value for seat, value in recent.items() if value is not None}


def _listed(values: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{seat}: {value:{form}}" for seat, value in values.items())
