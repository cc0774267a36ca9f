"""How often values of each type turned up in tasks: the basis of answer diversity rewards and of type
metrics.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Protocol

from azr_overrides.tasks.text_tools import value_type
from azr_overrides.tasks.types import Task, TaskKind

LABELS = ("input", "output", "error")

Counts = Mapping[str, Mapping[str, int]]  # type name -> value text -> occurrences


class CountsByLabel(Protocol):
    """Counts of each of `LABELS`; `TypeCounters`, or a plain mapping of what it holds."""

    def __getitem__(self, label: str, /) -> Counts: ...


class TypeCounters:
    """Counts of inputs, outputs and errors by type and value text."""

    def __init__(self) -> None:
        self._counts: dict[str, defaultdict[str, Counter[str]]] = {label: defaultdict(Counter) for label in LABELS}

    def __getitem__(self, label: str, /) -> Counts:
        """Counts of one of `LABELS`."""
        return self._counts[label]

    def add(self, task: Task) -> None:
        """Count every input and output of ``task``; what a code_e task gives is an error."""
        result = "error" if task.kind is TaskKind.CODE_E else "output"
        for label, values in (("input", task.inputs), (result, task.outputs)):
            for text in values:
                self._counts[label][value_type(text)][text] += 1

    def metrics(self) -> dict[str, int]:
        """``types/<label>_types/...``: distinct types, distinct values, occurrences; also by type."""
        result: dict[str, int] = {}
        for label, by_type in self._counts.items():
            prefix = f"types/{label}_types"
            result[f"{prefix}/distinct_types"] = len(by_type)
            result[f"{prefix}/total_unique_values"] = sum(len(values) for values in by_type.values())
            result[f"{prefix}/total_instances"] = sum(values.total() for values in by_type.values())
            for name, values in by_type.items():
                result[f"{prefix}/{name}/unique_count"] = len(values)
                result[f"{prefix}/{name}/total_count"] = values.total()
        return result

    def state_dict(self) -> dict[str, dict[str, dict[str, int]]]:
        """Plain JSON values."""
        return {
            label: {name: dict(values) for name, values in by_type.items()} for label, by_type in self._counts.items()
        }

    def load_state_dict(self, state: Mapping[str, Counts]) -> None:
        """Replace all counts by those of `state_dict`."""
        for label in LABELS:
            self._counts[label].clear()
            for name, values in state[label].items():
                self._counts[label][name] = Counter(values)
