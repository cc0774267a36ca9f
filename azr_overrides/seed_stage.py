"""The seeding stage (``azr.generate_seed_dataset_only``): the base model makes its own seed files.

The pool starts with the built-in identity task. Batch by batch the model proposes tasks that are conditioned
on the pool; what the verifier accepts joins it, until there are enough. The programs then get code_f inputs
and messages. In this stage a whole completion is read as an answer, since a base model has not learnt the
answer format yet.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from omegaconf import DictConfig

from azr_overrides.sandbox import Sandbox
from azr_overrides.seeding import SEED_AUTHOR, SeedPool, Validator, identity_task, seed_target
from azr_overrides.seeds import write_seeds
from azr_overrides.tasks.parsing import ParseOptions, extract_answer, parse_proposal_body
from azr_overrides.tasks.prompts import Messages, PromptSet
from azr_overrides.tasks.types import Rejection, Task, TaskKind

MAX_IDLE_BATCHES = 20  # batches in a row without a new task, after which the stage gives up

Generate = Callable[[Sequence[Messages]], Sequence[str]]
"""Completions of a batch of prompts, in order; ``""`` for a prompt that is too long."""


class SeedingStalled(RuntimeError):
    """The model writes no valid tasks any more; the message says why they were rejected."""


@dataclass(frozen=True, slots=True)
class StageRules:
    """What stays the same over the stage."""

    prompts: PromptSet
    parse: ParseOptions
    target: int  # tasks in each file
    batch_size: int  # proposals in a batch
    references: int  # earlier tasks in a prompt
    banned_words: tuple[str, ...] = ()
    banned_keywords: tuple[str, ...] = ()


class SeedStage:
    """Collects seed tasks.

    Args:
        generate: the model.
        rng: decides which tasks are shown as references.
        report: gets one line after each batch.
    """

    def __init__(
        self,
        rules: StageRules,
        generate: Generate,
        validator: Validator,
        rng: np.random.Generator,
        report: Callable[[str], None] = print,
    ) -> None:
        self._rules = rules
        self._generate = generate
        self._validator = validator
        self._rng = rng
        self._report = report

    async def collect(self, kinds: Sequence[TaskKind]) -> list[Task]:
        """``target`` tasks from proposers of ``kinds`` in turn, which share one pool.

        All tasks are returned as the first of ``kinds``: a row of a seed file serves them all.

        Raises:
            SeedingStalled: `MAX_IDLE_BATCHES` batches in a row brought nothing new.
        """
        pool = SeedPool([identity_task(kinds[0])])
        progress = _Progress(f"{kinds[0]} seeds", self._rules.target, self._report)
        while len(pool) < self._rules.target:
            kind = kinds[progress.batches % len(kinds)]
            shown = [self._sample(pool.tasks, self._rules.references) for _ in range(self._rules.batch_size)]
            tasks = await self._propose(kind, kinds[0], shown, progress.rejected)
            progress.add(pool.add(tasks), len(pool))
        return pool.tasks[: self._rules.target]

    async def collect_induction(self, programs: Sequence[Task]) -> list[Task]:
        """``target`` code_f tasks over ``programs``, each of which is shown before any is shown again.

        Raises:
            SeedingStalled: `MAX_IDLE_BATCHES` batches in a row brought nothing new.
        """
        pool = SeedPool([identity_task(TaskKind.CODE_F)])
        progress = _Progress("code_f seeds", self._rules.target, self._report)
        waiting: list[Task] = []
        while len(pool) < self._rules.target:
            if not waiting:
                waiting = self._sample(programs, len(programs))
            shown = [[task] for task in waiting[: self._rules.batch_size]]
            del waiting[: self._rules.batch_size]
            tasks = await self._propose(TaskKind.CODE_F, TaskKind.CODE_F, shown, progress.rejected)
            progress.add(pool.add(tasks), len(pool))
        return pool.tasks[: self._rules.target]

    def _sample(self, tasks: Sequence[Task], count: int) -> list[Task]:
        count = min(count, len(tasks))
        return [tasks[index] for index in self._rng.choice(len(tasks), size=count, replace=False)]

    async def _propose(
        self, kind: TaskKind, stored_as: TaskKind, shown: Sequence[Sequence[Task]], rejected: Counter[str]
    ) -> list[Task]:
        """One batch: a proposal for each tuple of references, parsed and verified."""
        rules = self._rules
        prompts = [
            rules.prompts.proposer(
                kind,
                references,
                banned_words=rules.banned_words,
                banned_keywords=rules.banned_keywords,
                num_inputs=rules.parse.num_inputs,
            )
            for references in shown
        ]
        completions = await asyncio.to_thread(self._generate, prompts)
        outcomes = await asyncio.gather(
            *(
                self._verify(stored_as, completion, references)
                for completion, references in zip(completions, shown, strict=True)
            )
        )
        rejected.update(str(outcome.reason) for outcome in outcomes if isinstance(outcome, Rejection))
        return [outcome for outcome in outcomes if isinstance(outcome, Task)]

    async def _verify(self, kind: TaskKind, completion: str, references: Sequence[Task]) -> Task | Rejection:
        answer = extract_answer(completion, self._rules.parse.extraction_type) or completion
        reference = references[0] if kind is TaskKind.CODE_F else None
        candidate = parse_proposal_body(kind, answer, self._rules.parse, reference=reference)
        if isinstance(candidate, Rejection):
            return candidate
        return await self._validator.validate(candidate, author=SEED_AUTHOR, step=0)


class _Progress:
    """Counts batches and gives up when they bring nothing."""

    def __init__(self, label: str, target: int, report: Callable[[str], None]) -> None:
        self.batches = 0
        self.rejected: Counter[str] = Counter()
        self._label, self._target, self._report = label, target, report
        self._idle = 0

    def add(self, added: int, total: int) -> None:
        self.batches += 1
        self._idle = 0 if added else self._idle + 1
        self._report(f"{self._label}: {min(total, self._target)} of {self._target} after {self.batches} batches")
        if self._idle >= MAX_IDLE_BATCHES:
            reasons = ", ".join(f"{count} {reason}" for reason, count in self.rejected.most_common())
            raise SeedingStalled(
                f"{self._label}: {self._idle} batches in a row brought no new task ({total} of {self._target}); "
                f"proposals were rejected as: {reasons or 'repeats only'}"
            )


def generate_seeds(config: DictConfig, report: Callable[[str], None] = print) -> list[Path]:
    """Run the stage for the composed configuration; returns the files that were written.

    Raises:
        ValueError: no output path for a kind that is wanted, told before the model is loaded.
        SeedingStalled: the model writes no valid tasks.
    """
    from azr_overrides.offline import OfflineModel
    from azr_overrides.settings import prompt_set, sandbox_config, task_kinds, verifier

    kinds, azr = task_kinds(config), config.azr
    io_kinds = [kind for kind in kinds if kind in (TaskKind.CODE_O, TaskKind.CODE_I)]
    wanted = {
        "azr.output_seed_path": bool(io_kinds) or TaskKind.CODE_F in kinds,
        "azr.output_error_seed_path": TaskKind.CODE_E in kinds,
        "azr.output_code_f_seed_path": TaskKind.CODE_F in kinds,
    }
    for key, is_wanted in wanted.items():
        if is_wanted and azr[key.removeprefix("azr.")] is None:
            raise ValueError(f"{key} is not set; the seeding stage needs to know where to write")
    selection = azr.data_selection_strategy
    prompts = prompt_set(config)
    rules = StageRules(
        prompts=prompts,
        parse=ParseOptions.from_config(config),
        target=seed_target(config),
        batch_size=config.data.train_batch_size,
        references=selection.io_n,
        banned_words=tuple(selection.banned_words),
        banned_keywords=tuple(selection.banned_keywords_for_errors_and_exceptions or ()),
    )

    async def run() -> list[Path]:
        written = []
        async with Sandbox(sandbox_config(config)) as sandbox:
            stage = SeedStage(
                rules,
                OfflineModel(config, prompts.chat).generate,
                verifier(config, sandbox),
                np.random.default_rng(config.seed),
                report,
            )
            programs = await stage.collect(io_kinds or [TaskKind.CODE_O])
            written.append(_write(azr.output_seed_path, programs))
            if TaskKind.CODE_E in kinds:
                written.append(_write(azr.output_error_seed_path, await stage.collect([TaskKind.CODE_E])))
            if TaskKind.CODE_F in kinds:
                written.append(_write(azr.output_code_f_seed_path, await stage.collect_induction(programs)))
        return written

    def _write(path: str, tasks: Sequence[Task]) -> Path:
        write_seeds(path, tasks)
        report(f"wrote {len(tasks)} seeds to {path}")
        return Path(path)

    return asyncio.run(run())
