"""verl's experiment trackers, none of which can stop a training: the run directory holds everything they are told."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from verl.utils.tracking import Tracking

logger = logging.getLogger(__name__)


class Trackers:
    """Stands in for verl's ``Tracking``, with the same arguments.

    A tracker that can't be started is left out; one that fails is told about the next step all the same. Both are
    logged once for each tracker and counted.

    Raises:
        ValueError: verl has no such tracker.
    """

    def __init__(
        self,
        project_name: str,
        experiment_name: str,
        default_backend: str | Sequence[str] = "console",
        config: Mapping[str, Any] | None = None,
    ):
        names = [default_backend] if isinstance(default_backend, str) else list(default_backend)
        if unknown := set(names) - set(Tracking.supported_backend):
            known = ", ".join(Tracking.supported_backend)
            raise ValueError(f"trainer.logger: there is no tracker {', '.join(sorted(unknown))}; choose from {known}")
        self.failures: Counter[str] = Counter()  # by tracker, since the start of the run
        self._reported = 0
        self._trackers: dict[str, Tracking] = {}
        for name in names:
            try:
                self._trackers[name] = Tracking(project_name, experiment_name, name, config)
            except Exception as error:  # whatever a third-party client raises
                self._count(name, error, "could not be started and gets nothing of this run")

    def log(self, data: Mapping[str, Any], step: int, backend: Sequence[str] | None = None) -> None:
        for name, tracker in self._trackers.items():
            if backend is None or name in backend:
                try:
                    tracker.log(data=data, step=step)
                except Exception as error:  # whatever a third-party client raises
                    self._count(name, error, f"did not take step {step}")

    def finish(self, exit_code: int = 0) -> None:
        for name, tracker in self._trackers.items():
            try:
                tracker.finish(exit_code)
            except Exception as error:  # whatever a third-party client raises
                self._count(name, error, "could not be finished")

    def take_failures(self) -> int:
        """How many calls have failed since the last call of this method."""
        fresh = self.failures.total() - self._reported
        self._reported += fresh
        return fresh

    def _count(self, name: str, error: Exception, what: str) -> None:
        self.failures[name] += 1
        if self.failures[name] == 1:
            logger.error("the tracker %s %s: %r. Training goes on; the run directory has everything", name, what, error)
