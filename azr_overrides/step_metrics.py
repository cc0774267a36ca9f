"""What one step's proposals and attempts say, from the records that are also written to the run directory: metrics, and
the outcome of matches.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from azr_overrides.rewards.teacher import solve_rate
from verl_populora.selfplay.ratings import MatchObservation

Record = Mapping[str, Any]


def task_metrics(records: Sequence[Record], seat_of: Callable[[str], str]) -> dict[str, float]:
    """What docs/metrics.md lists under tasks/, teacher/, student/, role/, invalid/ and complexity/.

    Args:
        records: proposal records of one step (docs/run-directory.md); those without a teacher are solver tasks.
        seat_of: member name -> seat.
    """
    proposals = [r for r in records if r["teacher"] is not None]
    metrics = _proposal_metrics("tasks", proposals)
    metrics["tasks/attempts"] = sum(len(r["attempts"]) for r in records)
    for kind in sorted({r["kind"] for r in proposals}):
        metrics |= _proposal_metrics(f"tasks/{kind}", [r for r in proposals if r["kind"] == kind])
    for teacher in sorted({r["teacher"] for r in proposals}):
        own = [r for r in proposals if r["teacher"] == teacher]
        prefix = f"teacher/{seat_of(teacher)}"
        metrics[f"{prefix}/valid_rate"] = _mean([r["valid"] for r in own])
        _put(metrics, f"{prefix}/solve_rate", [r["solve_rate"] for r in own if r["valid"]])
    attempts = [a for r in records for a in r["attempts"]]
    _put(metrics, "role/teacher/reward", [r["reward"] for r in proposals])
    _put(metrics, "role/student/reward", [a["reward"] for a in attempts if a["trained"]])
    for student in sorted({a["student"] for a in attempts}):
        own = [a for a in attempts if a["student"] == student]
        prefix = f"student/{seat_of(student)}"
        metrics[f"{prefix}/solve_rate"] = _mean([a["accuracy"] for a in own])
        metrics[f"{prefix}/malformed_rate"] = _mean([a["outcome"] == "malformed" for a in own])
    for reason, count in Counter(r["reason"] for r in proposals if not r["valid"]).items():
        metrics[f"invalid/{reason}"] = count
    for measure in ("ast_depth", "cyclomatic", "lines", "variables"):
        _put(metrics, f"complexity/{measure}", [r["complexity"][measure] for r in proposals if r["valid"]])
    return metrics


def match_observation(records: Sequence[Record], student: str, code_f_reward_type: str) -> MatchObservation:
    """How one student did against a teacher.

    Args:
        records: the teacher's proposals of the step.
        student: its name; other students' attempts at the same tasks are not its own.
    """
    valid = [r for r in records if r["valid"]]
    accuracies = [[a["accuracy"] for a in r["attempts"] if a["student"] == student] for r in valid]
    rates = [solve_rate(tried, code_f_reward_type) for tried in accuracies if tried]
    return MatchObservation(
        solve_rate=_mean(rates) if rates else None, valid_tasks=len(valid), attempts=sum(map(len, accuracies))
    )


def _proposal_metrics(prefix: str, proposals: Sequence[Record]) -> dict[str, float]:
    valid = [r for r in proposals if r["valid"]]
    rates = [r["solve_rate"] for r in valid if r["solve_rate"] is not None]
    metrics: dict[str, float] = {f"{prefix}/proposed": len(proposals), f"{prefix}/valid": len(valid)}
    _put(metrics, f"{prefix}/valid_rate", [r["valid"] for r in proposals])
    _put(metrics, f"{prefix}/solve_rate", rates)
    _put(metrics, f"{prefix}/unsolved_rate", [rate == 0.0 for rate in rates])
    _put(metrics, f"{prefix}/solved_rate", [rate == 1.0 for rate in rates])
    _put(metrics, f"{prefix}/mixed_rate", [0.0 < rate < 1.0 for rate in rates])
    _put(metrics, f"{prefix}/guess_rate", [r["guess_rate"] for r in valid])
    return metrics


def _put(metrics: dict[str, float], name: str, values: Sequence[Any]) -> None:
    """The mean of ``values`` without Nones; a metric without a value is absent, not zero."""
    present = [value for value in values if value is not None]
    if present:
        metrics[name] = _mean(present)


def _mean(values: Sequence[Any]) -> float:
    return float(sum(values)) / len(values)
