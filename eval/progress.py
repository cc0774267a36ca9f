"""Progress with an estimate of the time left: a live line in a terminal, a plain line now and then elsewhere."""

import sys
import time

_PLAIN_INTERVAL_S = 30.0


def duration(seconds: float) -> str:
    """``75`` as "1:15"."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"


class Progress:
    """``advance`` once for each finished item. The estimate leaves out what was done before this run."""

    def __init__(self, what: str, total: int, done: int = 0) -> None:
        self._what, self._total, self._done = what, total, done
        self._at_start = done
        self._started = time.monotonic()
        self._live = sys.stderr.isatty()
        self._last = 0.0 if self._live else self._started
        self._show(force=True)

    def advance(self, note: str = "") -> None:
        self._done += 1
        self._show(note)

    def _show(self, note: str = "", force: bool = False) -> None:
        now = time.monotonic()
        interval = 0.2 if self._live else _PLAIN_INTERVAL_S
        if not force and self._done < self._total and now - self._last < interval:
            return
        self._last = now
        fresh, elapsed = self._done - self._at_start, now - self._started
        left = f", {duration(elapsed * (self._total - self._done) / fresh)} left" if fresh else ""
        line = f"{self._what}: {self._done}/{self._total} in {duration(elapsed)}{left} {note}".rstrip()
        print(
            f"\r\x1b[K{line}" if self._live else line,
            end="" if self._live else "\n",
            file=sys.stderr,
            flush=True,
        )

    def finish(self) -> None:
        if self._live:
            print(file=sys.stderr)
