"""What travels through an evaluation, in the order in which it appears.

data file --loaders-> Problem --prompts-> Request --generate-> Completion --graders-> Grade --table-> cells
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class UsageError(Exception):
    """Bad input from the person at the command line: the message says what, where, and what to do."""


class Group(StrEnum):
    """How a benchmark is graded and averaged."""

    CODE = "code"
    MATH = "math"


class Profile(StrEnum):
    PARITY = "parity"  # the protocol of the published numbers, its grading faults included
    FIXED = "fixed"  # our prompts for every model kind, and graders with the known faults repaired


class ModelKind(StrEnum):
    """In which shape a model expects its prompt; adapters inherit the kind of their training."""

    BASE = "base"  # plain completion, no template
    CHAT = "chat"  # the tokenizer's chat template
    AZR = "azr"  # thinks in <think>, answers in <answer>


class Status(StrEnum):
    """What became of one completion when it was graded."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"  # nothing to grade was found in the text
    TIMEOUT = "timeout"  # the grader or the program ran into its limit; counts as wrong
    ERROR = "error"  # the grader failed on this answer; counts as wrong and is shown


@dataclass(frozen=True, slots=True)
class Problem:
    """One item of a benchmark."""

    benchmark: str
    problem_id: str  # unique in its benchmark, stable over runs
    question: str  # statement as shown to the model, without any instruction
    gold: str = ""  # math: the reference answer in LaTeX or plain text
    payload: Mapping[str, Any] = field(default_factory=dict)  # code: what the grader needs


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one completion is drawn; part of its cache key."""

    temperature: float
    top_p: float
    max_tokens: int
    stop: tuple[str, ...]
    seed: int  # of this sample: the run's seed plus the sample's index
    context: int = 0  # prompt + completion never exceed this many tokens; 0: the model's own limit


@dataclass(frozen=True, slots=True)
class Request:
    """One completion that is wanted. ``key`` names it in the cache, whoever asks for it."""

    key: str
    member: str
    benchmark: str
    problem_id: str
    sample: int  # 0-based
    template: str
    prompt: str
    special_tokens: bool  # whether the tokenizer adds its own (false after a chat template)
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote for one request."""

    key: str
    text: str
    finish_reason: str  # "stop", "length", or "prompt_too_long" (nothing was generated)
    prompt_tokens: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on one completion."""

    key: str
    status: Status
    extracted: str  # what was graded: the answer text or the program
    detail: str = ""  # one line: failing test, limit, exception
    isolation: str = ""  # code: the isolation level that was measured when it ran
