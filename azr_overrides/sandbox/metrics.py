"""Counts and times of what the sandbox did."""

from collections import Counter, deque
from collections.abc import Iterable
from time import monotonic

from azr_overrides.sandbox.types import RunResult, Status

_KEPT_TIMES = 10_000


class Statistics:
    """Accumulates since it was made."""

    def __init__(self) -> None:
        self._since = monotonic()
        self._statuses: Counter[Status] = Counter()
        self._programs = 0
        self._times: deque[float] = deque(maxlen=_KEPT_TIMES)
        self.retries = 0
        self.respawns = 0

    def record(self, results: Iterable[RunResult], wall_s: float) -> None:
        """Take the outcome of one program: its results, life of its child in seconds."""
        self._programs += 1
        for result in results:
            self._statuses[result.status] += 1
        self._times.append(wall_s)

    def as_dict(self) -> dict[str, float]:
        """Flat numbers; times in milliseconds, 0 if nothing ran."""
        times = sorted(self._times)
        elapsed = monotonic() - self._since
        return {
            "programs": float(self._programs),
            "programs_per_s": self._programs / elapsed if elapsed > 0 else 0.0,
            "p50_ms": 1000 * _quantile(times, 0.50),
            "p99_ms": 1000 * _quantile(times, 0.99),
            "retries": float(self.retries),
            "respawns": float(self.respawns),
            **{status.value: float(self._statuses[status]) for status in Status},
        }


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
