"""Seed tasks: the built-in one, those of seed files, and the stage that lets a model make its own.

Nothing is taken on trust: every row of a seed file and every proposal of the stage goes through the verifier.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from azr_overrides.seeds import read_seeds
from azr_overrides.tasks.types import Candidate, Rejection, Task, TaskKind
from azr_overrides.tasks.verification import NO_ERROR, task_id

SEED_AUTHOR = "seed"

_IDENTITY = "def f(a):\n    return a"
_IDENTITY_INPUTS = ("'Hello world'", "1", "{'a': 1, 'b': 2}", "(1.1, 1.2, 1.3)", "'[[1, 0], [0, 1]]'", "101")

logger = logging.getLogger(__name__)


class Validator(Protocol):
    """The part of the verifier that seeds need."""

    async def validate(self, candidate: Candidate, author: str, step: int) -> Task | Rejection: ...


def identity_task(kind: TaskKind) -> Task:
    """The built-in seed: a function that returns its argument."""
    inputs, outputs, message = _IDENTITY_INPUTS[:1], _IDENTITY_INPUTS[:1], ""
    if kind is TaskKind.CODE_E:
        outputs = (NO_ERROR,)
    elif kind is TaskKind.CODE_F:
        inputs = outputs = _IDENTITY_INPUTS
        message = "Look closely at what goes in and what comes out."
    name = task_id(kind, _IDENTITY, inputs)
    return Task(name, kind, _IDENTITY, inputs, outputs, message=message, author=SEED_AUTHOR)


@dataclass(frozen=True, slots=True)
class SeedFiles:
    """Where seed tasks come from; without a file a kind starts from `identity_task`."""

    code_io: str | None = None  # azr.seed_dataset: its rows seed code_i and code_o alike
    code_e: str | None = None  # azr.error_seed_dataset
    code_f: str | None = None  # azr.code_f_seed_dataset
    limit: int | None = None  # rows of each file that are used

    @classmethod
    def from_config(cls, config) -> "SeedFiles":
        """From the composed configuration. AZR uses as many rows as the seeding stage would have made."""
        azr = config.azr
        return cls(azr.seed_dataset, azr.error_seed_dataset, azr.code_f_seed_dataset, seed_target(config))

    def candidates(self) -> list[Candidate]:
        """The rows of all files, those of ``code_io`` as code_o only. Errors as in `read_seeds`."""
        sources = (
            (self.code_io, TaskKind.CODE_O),
            (self.code_e, TaskKind.CODE_E),
            (self.code_f, TaskKind.CODE_F),
        )
        return [candidate for path, kind in sources if path for candidate in read_seeds(path, kind, self.limit)]

    async def load(self, validator: "Validator") -> list[Task]:
        """Verified seed tasks of every kind; rows that are not tasks are left out and reported in the log.

        Raises:
            FileNotFoundError: no such file.
            ValueError: a file is damaged (the message names the line), or none of its rows is a task.
        """
        tasks, rejected = await verify_seeds(self.candidates(), validator)
        if rejected:
            reasons = ", ".join(f"{count} {reason}" for reason, count in rejected.most_common())
            logger.warning(
                "%d of %d seed rows are no tasks: %s",
                rejected.total(),
                rejected.total() + len(tasks),
                reasons,
            )
        abduction = [as_kind(task, TaskKind.CODE_I) for task in tasks if task.kind is TaskKind.CODE_O]
        tasks += abduction
        for path, kind in (
            (self.code_io, TaskKind.CODE_O),
            (self.code_io, TaskKind.CODE_I),
            (self.code_e, TaskKind.CODE_E),
            (self.code_f, TaskKind.CODE_F),
        ):
            if any(task.kind is kind for task in tasks):
                continue
            if path:
                raise ValueError(f"{path}: none of its rows is a valid {kind} task")
            tasks.append(identity_task(kind))
        return tasks


def seed_target(config) -> int:
    """How many seeds of a kind the seeding stage makes, and how many rows of a seed file are used."""
    selection = config.azr.data_selection_strategy
    return config.data.train_batch_size * selection.update_iteration * selection.seed_batch_factor


def as_kind(task: Task, kind: TaskKind) -> Task:
    """The same program, input and output asked the other way round (code_o and code_i)."""
    return replace(task, kind=kind, task_id=task_id(kind, task.program, task.inputs))


async def verify_seeds(candidates: Sequence[Candidate], validator: Validator) -> tuple[list[Task], Counter[str]]:
    """Run seeds through the verifier: the valid tasks in order, and the number rejected for each reason."""
    outcomes = await asyncio.gather(
        *(validator.validate(candidate, author=SEED_AUTHOR, step=0) for candidate in candidates)
    )
    tasks = [outcome for outcome in outcomes if isinstance(outcome, Task)]
    return tasks, Counter(str(outcome.reason) for outcome in outcomes if isinstance(outcome, Rejection))


class SeedPool:
    """What the seeding stage has collected for one kind: the references of its next proposals.

    A batch is compared with earlier batches only, as in AZR, so the repeats inside a batch count towards the
    target.
    """

    def __init__(self, tasks: Iterable[Task] = ()) -> None:
        self.tasks: list[Task] = list(tasks)

    def add(self, batch: Iterable[Task]) -> int:
        """Add the tasks that no earlier batch holds; returns their number."""
        known = {_content(task) for task in self.tasks}
        added = [task for task in batch if _content(task) not in known]
        self.tasks += added
        return len(added)

    def __len__(self) -> int:
        return len(self.tasks)


def _content(task: Task) -> Task:
    return replace(task, author="", step=0)
