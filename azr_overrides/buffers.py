"""What was proposed so far: the references of proposers and, for the single agent, the tasks of solvers.

A buffer holds each task once (by ``task_id``: kind, normalised program and inputs) and keeps the newest tasks
of a kind. Randomness comes from the caller's generator, so a resumed run draws what the uninterrupted one
would have.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from azr_overrides.tasks.type_counters import TypeCounters
from azr_overrides.tasks.types import Task, TaskKind

MIX_STRATEGIES = ("max_new", "half_new", "uniform_total", "step")
REFERENCE_STRATEGIES = ("uniform", "step")
_REFERENCE_KINDS = {TaskKind.CODE_F: (TaskKind.CODE_I, TaskKind.CODE_O)}


@dataclass(frozen=True, slots=True)
class BufferOptions:
    """How buffers are sampled and limited."""

    mix: str = "max_new"  # azr.pred_data_mix_strategy: which tasks solvers get
    window: int = 1  # azr.past_epoch_window: a task is new for this many steps after its own
    references: str = "uniform"  # azr.gen_data_probabilities_strategy: which tasks proposers see
    max_tasks: int | None = None  # of a kind; older ones are dropped

    def __post_init__(self) -> None:
        for name, value, choices in (
            ("pred_data_mix_strategy", self.mix, MIX_STRATEGIES),
            ("gen_data_probabilities_strategy", self.references, REFERENCE_STRATEGIES),
        ):
            if value not in choices:
                raise ValueError(f"azr.{name} is {value!r}; choose one of {', '.join(choices)}")
        if self.max_tasks is not None and self.max_tasks < 1:
            raise ValueError(
                f"azr.data_selection_strategy.max_programs is {self.max_tasks}; use null or a positive number"
            )

    @classmethod
    def from_config(cls, config) -> "BufferOptions":
        """From the composed configuration."""
        azr = config.azr
        return cls(
            mix=azr.pred_data_mix_strategy,
            window=azr.past_epoch_window,
            references=azr.gen_data_probabilities_strategy,
            max_tasks=azr.data_selection_strategy.max_programs,
        )


class TaskBuffers:
    """One buffer for each task kind.

    ``counters`` counts the types of all tasks ever added, dropped ones included.
    """

    def __init__(self, options: BufferOptions | None = None) -> None:
        self.options = options or BufferOptions()
        self.counters = TypeCounters()
        self._tasks: dict[TaskKind, list[Task]] = {kind: [] for kind in TaskKind}
        self._seen: set[str] = set()

    @classmethod
    def seeded(cls, tasks: Iterable[Task], options: BufferOptions | None = None) -> "TaskBuffers":
        """Buffers filled with verified seed tasks."""
        buffers = cls(options)
        for task in tasks:
            buffers.add(task)
        return buffers

    def add(self, task: Task) -> bool:
        """Store ``task``; False, changing nothing, if it was stored before (even if dropped since)."""
        if task.task_id in self._seen:
            return False
        self._seen.add(task.task_id)
        self.counters.add(task)
        tasks = self._tasks[task.kind]
        tasks.append(task)
        if self.options.max_tasks is not None:
            del tasks[: -self.options.max_tasks]
        return True

    def contains(self, task_id: str) -> bool:
        """Whether a task with this id was ever stored."""
        return task_id in self._seen

    @property
    def known_ids(self) -> frozenset[str]:
        """Ids of all tasks ever stored."""
        return frozenset(self._seen)

    def tasks(self, kind: TaskKind) -> tuple[Task, ...]:
        """Stored tasks of a kind, oldest first."""
        return tuple(self._tasks[kind])

    def recent(self, kind: TaskKind, step: int) -> list[Task]:
        """Stored tasks that are new at ``step``: ``step - task.step <= window``."""
        return [task for task in self._tasks[kind] if step - task.step <= self.options.window]

    def references(self, kind: TaskKind, count: int, rng: np.random.Generator) -> list[Task]:
        """Up to ``count`` different tasks for a proposer's prompt.

        A code_f proposer is shown a program of the code_i or code_o buffer. With the ``step`` strategy a
        task's weight is its step + 1.
        """
        pool = [task for source in _REFERENCE_KINDS.get(kind, (kind,)) for task in self._tasks[source]]
        weights = np.array([task.step + 1.0 for task in pool]) if self.options.references == "step" else None
        return _draw(pool, count, rng, weights)

    def solver_tasks(self, kind: TaskKind, count: int, step: int, rng: np.random.Generator) -> list[Task]:
        """``count`` tasks for the single agent's solver at ``step``, by the mix strategy; none if there are
        none.

        ``max_new`` takes as many new tasks as possible and the rest from all tasks, ``half_new`` the same
        with half of ``count``, ``uniform_total`` takes from all tasks, ``step`` draws with replacement by
        step. A short buffer is repeated.
        """
        tasks = self._tasks[kind]
        if not tasks or count <= 0:
            return []
        if self.options.mix == "step":
            steps = np.array([float(task.step) for task in tasks])
            weights = steps / steps.sum() if steps.sum() > 0 else None
            return [tasks[index] for index in rng.choice(len(tasks), size=count, p=weights)]
        n_new = {"max_new": count, "half_new": count // 2, "uniform_total": 0}[self.options.mix]
        chosen = _draw(self.recent(kind, step), n_new, rng)
        chosen += _draw(tasks, count - len(chosen), rng)
        missing = count - len(chosen)
        return chosen + [tasks[index] for index in rng.choice(len(tasks), size=missing)]

    def state_dict(self) -> dict[str, Any]:
        """Everything but the options, as plain JSON values."""
        stored = [task for tasks in self._tasks.values() for task in tasks]
        return {
            "tasks": [asdict(task) for task in stored],
            "dropped": sorted(self._seen - {task.task_id for task in stored}),
            "counters": self.counters.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave, also after a round trip through JSON."""
        self._tasks = {kind: [] for kind in TaskKind}
        for record in state["tasks"]:
            task = task_from_record(record)
            self._tasks[task.kind].append(task)
        self._seen = {record["task_id"] for record in state["tasks"]} | set(state["dropped"])
        self.counters.load_state_dict(state["counters"])

    def to_jsonl(self) -> str:
        """The state with one task a line, for ``buffers.jsonl`` of a checkpoint."""
        state = self.state_dict()
        rest = {key: state[key] for key in ("dropped", "counters")}
        return "".join(json.dumps(record) + "\n" for record in (rest, *state["tasks"]))

    def load_jsonl(self, text: str) -> None:
        """Restore what `to_jsonl` gave."""
        rest, *tasks = (json.loads(line) for line in text.splitlines())
        self.load_state_dict({"tasks": tasks, **rest})


def task_from_record(record: Mapping[str, Any]) -> Task:
    """The task whose ``dataclasses.asdict`` is ``record``, lists standing for tuples."""
    fields = {name: tuple(value) if isinstance(value, list | tuple) else value for name, value in record.items()}
    return Task(**{**fields, "kind": TaskKind(record["kind"])})


def _draw(pool: Sequence[Task], count: int, rng: np.random.Generator, weights: np.ndarray | None = None) -> list[Task]:
    """Up to ``count`` tasks without replacement."""
    count = min(count, len(pool))
    if count <= 0:
        return []
    probabilities = None if weights is None else weights / weights.sum()
    return [pool[index] for index in rng.choice(len(pool), size=count, replace=False, p=probabilities)]
