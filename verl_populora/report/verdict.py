"""Does the curriculum grow or collapse? One word and one sentence for a run, from its metrics alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev

from verl_populora.detectors import COMPLEXITY_METRICS, DetectorSettings, Finding, detect
from verl_populora.report.data import RunData


class Status(StrEnum):
    """The word, and the colour class of the page."""

    GROWS = "grows"
    NO_TREND = "no clear trend"
    SIMPLIFIES = "simplifies"
    STALLS = "stalls"
    COLLAPSES = "collapses"
    TOO_EARLY = "too early to tell"


COLLAPSE = frozenset({"self_calibration", "copies"})


@dataclass(frozen=True, slots=True)
class Verdict:
    status: Status
    sentence: str
    findings: tuple[Finding, ...]


def judge(run: RunData, window: int = 10) -> Verdict:
    """Compare the first and the last ``window`` steps.

    A run grows (simplifies) when its complexity index rose (fell) by at least 5 % and by more than two
    standard errors of the difference of the two windows. Steps are not independent, so this guards against
    reading noise but is no significance test; a claim needs several seeds.
    """
    findings = tuple(detect(run.history, DetectorSettings(window=window)))
    if len(run.history) < 2 * window:
        steps = len(run.history)
        return Verdict(Status.TOO_EARLY, f"{steps} of at least {2 * window} steps.", findings)
    index = [value for value in complexity_index(run, window) if value is not None]
    if len(index) < 2 * window:
        return Verdict(Status.NO_TREND, "Too few steps with valid programs to compare.", findings)
    change, error = _change(index[:window], index[-window:])
    clear = abs(change) >= 0.05 and abs(change) > 2 * error
    names = {finding.name for finding in findings}
    if names & COLLAPSE:
        status = Status.COLLAPSES
    elif names:
        status = Status.STALLS
    elif not clear:
        status = Status.NO_TREND
    else:
        status = Status.GROWS if change > 0 else Status.SIMPLIFIES
    return Verdict(status, _sentence(run, window, change, error), findings)


def complexity_index(run: RunData, window: int = 10) -> tuple[float | None, ...]:
    """Mean of the complexity measures, each relative to its mean over the first ``window`` steps."""
    columns = []
    for name in COMPLEXITY_METRICS:
        values = run.series(f"complexity/{name}")
        first = [value for value in values[:window] if value is not None]
        if first and fmean(first) > 0:
            columns.append([None if value is None else value / fmean(first) for value in values])
    rows = zip(*columns, strict=True) if columns else iter([()] * len(run.history))
    return tuple(_mean_or_none(row) for row in rows)


def _change(first: Sequence[float], last: Sequence[float]) -> tuple[float, float]:
    """Relative change of the mean and its standard error."""
    error = 0.0
    if len(first) > 1:
        error = (stdev(first) ** 2 / len(first) + stdev(last) ** 2 / len(last)) ** 0.5
    return (fmean(last) - fmean(first)) / fmean(first), error / fmean(first)


def _sentence(run: RunData, window: int, change: float, error: float) -> str:
    direction = "rose" if change > 0 else "fell"
    sentence = (
        f"Program complexity {direction} {abs(change):.0%} (standard error {error:.0%}) from the first "
        f"to the last {window} steps."
    )
    recent = [value for value in run.series("tasks/solve_rate")[-window:] if value is not None]
    if recent:
        sentence += f" Solve rate now {fmean(recent):.2f}, between {min(recent):.2f} and {max(recent):.2f}."
    new = [value for value in run.series("coverage/new")[-window:] if value is not None]
    totals = [value for value in run.series("coverage/total") if value is not None]
    if new and totals:
        sentence += f" {totals[-1]:.0f} program structures visited, {fmean(new):.1f} new a step at the end."
    return sentence


def _mean_or_none(values: Sequence[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return fmean(present) if present else None
