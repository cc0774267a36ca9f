"""One episode: a teacher's prompt, its proposals, their verification, the student's attempts, every reward.

Nothing waits for anything it does not need: each proposal is verified as soon as it is written and goes to the student
at once, while other proposals are still being written. What is lost on the way (an attempt, a verification, a whole
proposal) loses only its own samples and is counted.

This module knows no verl, Ray or vLLM: text comes from a Policy, verdicts from a Verifier.
"""

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from azr_overrides.records import task_fields
from azr_overrides.rewards.teacher import ProposerReward
from azr_overrides.tasks.guessing import GuessRule
from azr_overrides.tasks.parsing import ParseOptions, format_ok, parse_answer, parse_proposal
from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import (
    Outcome,
    Rejection,
    RejectReason,
    Task,
    TaskKind,
    Verdict,
)
from azr_overrides.tasks.verification import Verifier
from verl_populora.selfplay.groups import Group, Part

logger = logging.getLogger(__name__)

Message = dict[str, str]


class PromptTooLong(ValueError):
    """A prompt does not fit the rollout's prompt length; it is never truncated."""


@dataclass(frozen=True, slots=True)
class Generation:
    """One completion and whatever the training side needs to learn from it."""

    text: str  # prompt part that belongs to the answer (an opened think tag) and response, as AZR scores it
    tokens: int  # response tokens
    version: int  # of the adapter that wrote it
    sample: Any  # opaque: the rollout's own record of prompt, tokens and log-probabilities


class Policy(Protocol):
    """Text from one member."""

    async def __call__(
        self, adapter_id: int, messages: list[Message], seed: int, max_prompt: int | None = None
    ) -> Generation:
        """Sample one completion.

        Args:
            max_prompt: tokens that the prompt may have; None for the rollout's own limit.

        Raises:
            PromptTooLong: the prompt does not fit.
        """
        ...


@dataclass(frozen=True, slots=True)
class Player:
    """A member as an episode sees it."""

    name: str
    adapter_id: int
    learns: bool = True  # False: a past student, whose attempts reward the teacher and train nobody


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """What the trainer asks an episode to do. Exactly one of ``references`` and ``task`` matters.

    With ``task`` set the teacher writes nothing: the students attempt that task (the baseline's solver samples).
    """

    episode: str  # no "_"; unique in a step
    step: int
    seed: int
    kind: TaskKind
    students: tuple[Player, ...]  # distinct
    attempts: int  # of each student at each valid task
    teacher: Player | None = None
    proposals: int = 0  # drawn from one prompt
    references: tuple[Task, ...] = ()
    composites: tuple[str, ...] = ()
    task: Task | None = None
    train_attempts: bool = True  # False: attempts only estimate the proposer's reward


@dataclass(frozen=True, slots=True)
class Row:
    """One training sample."""

    group: Group
    index: int  # inside the group
    reward: float
    generation: Generation


@dataclass(slots=True)
class EpisodeResult:
    rows: list[Row] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)  # docs/run-directory.md, one for each proposal
    tasks: list[Task] = field(default_factory=list)  # valid ones, in the order of the proposals
    drops: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Rules:
    """What stays the same over a run."""

    prompts: PromptSet
    parse: ParseOptions
    verifier: Verifier
    proposer_reward: ProposerReward
    asking: Mapping[str, Any]  # further arguments of ``PromptSet.proposer``
    content_max_length: int  # tokens; a task whose solver prompt is longer is not used
    duplicate_task_reward: float | None  # None: repeats count as tasks
    attempt_reward: Callable[[Verdict], float]
    counted_accuracy: Callable[[float], float]  # what an accuracy counts for in a solve rate
    guessing: GuessRule = GuessRule()


@dataclass(frozen=True, slots=True)
class _Proposal:
    """A settled proposal."""

    generation: Generation
    outcome: Task | Rejection
    attempts: Sequence["_Attempt"] = ()
    guess_rate: float | None = None  # see Verifier.guess_rate; None: not measured


@dataclass(frozen=True, slots=True)
class _Attempt:
    student: Player
    index: int  # in the episode's attempts at the task
    answer: str
    verdict: Verdict
    reward: float
    generation: Generation


class Episode:
    """Runs one plan.

    Args:
        known: ids of tasks that exist already.
    """

    def __init__(self, plan: EpisodePlan, rules: Rules, policy: Policy, known: Collection[str] = frozenset()):
        self.plan = plan
        self.rules = rules
        self.policy = policy
        self.known = known
        self.result = EpisodeResult()
        # Attempts that only measure a task count whatever their wrapping, as in AZR.
        self._attempt_options = rules.parse if plan.train_attempts else rules.parse.without_format_rule()

    async def run(self) -> EpisodeResult:
        """All samples and records of the episode; failures inside it are counted in ``drops``, not raised."""
        if self.plan.task is not None:
            attempts = await self._attempts(self.plan.task, "t")
            self.result.rows += self._attempt_rows(self.plan.task, "t", attempts)
            self.result.records.append(self._solver_record(self.plan.task, attempts))
            return self.result
        pipelines = (self._proposal(index) for index in range(self.plan.proposals))
        for index, outcome in enumerate(await asyncio.gather(*pipelines, return_exceptions=True)):
            if isinstance(outcome, BaseException):
                self._drop("proposal", outcome)
                continue
            self._account(index, outcome)
        return self.result

    # ---- one proposal -------------------------------------------------------------------------------------------

    async def _proposal(self, index: int) -> _Proposal:
        plan = self.plan
        assert plan.teacher is not None
        messages = self.rules.prompts.proposer(
            plan.kind,
            plan.references,
            num_inputs=self.rules.parse.num_inputs,
            composites=plan.composites,
            **self.rules.asking,
        )
        generation = await self.policy(plan.teacher.adapter_id, messages, self._seed(Part.PROPOSE, index))
        task = await self._verify(generation.text, plan.teacher.name)
        if isinstance(task, Rejection):
            return _Proposal(generation, task)
        guess_rate = asyncio.create_task(self._guess_rate(task))  # runs while the student writes
        try:
            attempts = await self._attempts(task, f"p{index}")
        except PromptTooLong as error:
            return _Proposal(generation, Rejection(RejectReason.TOO_LONG, str(error)))
        finally:
            measured = await guess_rate
        return _Proposal(generation, task, attempts, measured)

    async def _guess_rate(self, task: Task) -> float | None:
        variations = self.rules.guessing.variations
        return await self.rules.verifier.guess_rate(task, variations) if variations else None

    async def _verify(self, completion: str, author: str) -> Task | Rejection:
        reference = self.plan.references[0] if self.plan.references else None
        candidate = parse_proposal(
            self.plan.kind, completion, self.rules.parse, reference=reference, composites=self.plan.composites
        )
        if isinstance(candidate, Rejection):
            return candidate
        task = await self.rules.verifier.validate(candidate, author=author, step=self.plan.step)
        if isinstance(task, Task) and self.rules.duplicate_task_reward is not None and task.task_id in self.known:
            return Rejection(RejectReason.DUPLICATE, f"task {task.task_id} exists already")
        return task

    # ---- attempts -----------------------------------------------------------------------------------------------

    async def _attempts(self, task: Task, group: str) -> list[_Attempt]:
        """Judged attempts at ``task``; lost and unjudged ones are counted.

        Raises:
            PromptTooLong: the task does not fit the student's prompt, so no attempt was made.
        """
        messages = self.rules.prompts.solver(task)
        outcomes = await asyncio.gather(
            *(
                self._attempt(task, messages, group, student, place * self.plan.attempts + index)
                for place, student in enumerate(self.plan.students)
                for index in range(self.plan.attempts)
            ),
            return_exceptions=True,
        )
        attempts = []
        for outcome in outcomes:
            if isinstance(outcome, PromptTooLong):
                raise outcome
            if isinstance(outcome, BaseException):
                self._drop("attempt", outcome)
            elif outcome.verdict.outcome is Outcome.UNJUDGED:
                self._drop("unjudged_attempt", outcome.verdict.detail)
            else:
                attempts.append(outcome)
        return attempts

    async def _attempt(self, task: Task, messages: list[Message], group: str, student: Player, index: int) -> _Attempt:
        seed = self._seed(Part.SOLVE, group, index)
        limit = self.rules.content_max_length
        generation = await self.policy(student.adapter_id, messages, seed, limit)
        answer = parse_answer(task.kind, generation.text, self._attempt_options)
        verdict = await self.rules.verifier.judge(task, answer)
        return _Attempt(student, index, answer.text, verdict, self.rules.attempt_reward(verdict), generation)

    # ---- bookkeeping --------------------------------------------------------------------------------------------

    def _account(self, index: int, proposal: _Proposal) -> None:
        """Turn one settled proposal into samples and a record."""
        plan, generation, task, attempts = self.plan, proposal.generation, proposal.outcome, proposal.attempts
        assert plan.teacher is not None
        well_formed = format_ok(generation.text, self.rules.parse.extraction_type)
        infrastructure = isinstance(task, Rejection) and task.reason is RejectReason.UNVERIFIED
        if infrastructure or (isinstance(task, Task) and not attempts):
            # Nothing is known about this proposal's worth, and it is not the teacher's fault.
            self._drop("unrewarded_proposal", task.detail if isinstance(task, Rejection) else "no judged attempt")
            self.result.records.append(self._record(index, proposal, None, well_formed))
            return
        accuracies = [attempt.verdict.accuracy for attempt in attempts]
        if isinstance(task, Rejection) and task.reason is RejectReason.DUPLICATE:
            reward = float(self.rules.duplicate_task_reward or 0.0)
        else:
            reward = self.rules.proposer_reward(task, accuracies, well_formed, plan.references)
            reward = self.rules.guessing.discounted(reward, proposal.guess_rate)
        group = Group(plan.episode, plan.teacher.adapter_id, Part.PROPOSE, plan.kind, "t")
        self.result.rows.append(Row(group, index, reward, generation))
        if isinstance(task, Task):
            self.result.tasks.append(task)
            if plan.train_attempts:
                self.result.rows += self._attempt_rows(task, f"p{index}", attempts)
        self.result.records.append(self._record(index, proposal, reward, well_formed))

    def _attempt_rows(self, task: Task, name: str, attempts: Sequence[_Attempt]) -> list[Row]:
        """Each student's attempts are a group of their own: its baseline is the student's mean, not the others'."""
        return [
            Row(
                Group(self.plan.episode, attempt.student.adapter_id, Part.SOLVE, task.kind, name),
                attempt.index,
                attempt.reward,
                attempt.generation,
            )
            for attempt in attempts
            if attempt.student.learns
        ]

    def _record(self, index: int, proposal: _Proposal, reward: float | None, well_formed: bool) -> dict[str, Any]:
        plan, generation, task, attempts = self.plan, proposal.generation, proposal.outcome, proposal.attempts
        assert plan.teacher is not None
        valid = isinstance(task, Task)
        return {
            "step": plan.step,
            "episode": plan.episode,
            "index": index,
            "kind": str(plan.kind),
            "teacher": plan.teacher.name,
            "student": self._student_names(),
            "valid": valid,
            "reason": None if valid else str(task.reason),
            "detail": "" if valid else task.detail,
            **task_fields(task if valid else None),
            "reward": reward,
            "format_ok": well_formed,
            "solve_rate": _mean([self.rules.counted_accuracy(a.verdict.accuracy) for a in attempts]),
            "guess_rate": proposal.guess_rate,
            "response_tokens": generation.tokens,
            "teacher_version": generation.version,
            "completion": generation.text,
            "attempts": [self._attempt_record(a) for a in attempts],
        }

    def _solver_record(self, task: Task, attempts: Sequence[_Attempt]) -> dict[str, Any]:
        """A record of attempts at a task from the buffer, which no proposal of this step made."""
        return {
            "step": self.plan.step,
            "episode": self.plan.episode,
            "index": None,
            "kind": str(task.kind),
            "teacher": None,
            "student": self._student_names(),
            "valid": True,
            "reason": None,
            "detail": "from the buffer",
            **task_fields(task),
            "reward": None,
            "format_ok": None,
            "solve_rate": _mean([self.rules.counted_accuracy(a.verdict.accuracy) for a in attempts]),
            "guess_rate": None,
            "response_tokens": 0,
            "teacher_version": None,
            "completion": "",
            "attempts": [self._attempt_record(a) for a in attempts],
        }

    def _attempt_record(self, attempt: _Attempt) -> dict[str, Any]:
        return {
            "student": attempt.student.name,
            "answer": attempt.answer,
            "outcome": str(attempt.verdict.outcome),
            "accuracy": attempt.verdict.accuracy,
            "detail": attempt.verdict.detail,
            "reward": attempt.reward,
            "trained": self.plan.train_attempts and attempt.student.learns,
            "response_tokens": attempt.generation.tokens,
            "version": attempt.generation.version,
            "completion": attempt.generation.text,
        }

    def _student_names(self) -> str:
        return ", ".join(student.name for student in self.plan.students)

    def _seed(self, *path: object) -> int:
        """Seed of one completion's random stream; depends on the run, the step and the place in the episode only."""
        text = "/".join(map(str, (self.plan.seed, self.plan.step, self.plan.episode, *path)))
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "big")

    def _drop(self, what: str, why: object) -> None:
        self.result.drops[what] += 1
        # verl sets the root logger to ERROR in the rollout's processes; a loss must be seen there too.
        logger.error("step %d, episode %s: dropped %s: %r", self.plan.step, self.plan.episode, what, why)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
