"""What travels through one self-play episode, in the order in which it appears.

    completion --parse--> Candidate | Rejection          (parsing.py)
    Candidate  --verify-> Task      | Rejection          (verification.py, in the sandbox)
    Task       --prompt-> a student's completion         (prompts.py)
    completion --parse--> Answer                         (parsing.py)
    Answer     --judge--> Verdict                        (verification.py, in the sandbox)

Programs, inputs and outputs are text throughout. Nothing here is ever evaluated in this process: an input is the
argument list of one call (``"3, [1, 2]"``), an output is the canonical text of one plain built-in value.
"""

from dataclasses import dataclass
from enum import StrEnum


class TaskKind(StrEnum):
    """What the student has to find; the proposer writes the rest."""

    CODE_O = "code_o"  # deduction: program and input are given, the output is asked
    CODE_I = "code_i"  # abduction: program and output are given, an input is asked
    CODE_F = "code_f"  # induction: input/output pairs and a message are given, the program is asked
    CODE_E = "code_e"  # error: program and input are given, the name of the raised exception is asked


class RejectReason(StrEnum):
    """Why a proposal did not become a task. Every value is counted under ``invalid/<value>``."""

    NO_ANSWER = "no_answer"  # the completion has no answer part
    NO_PROGRAM = "no_program"  # no fenced program
    NO_INPUT = "no_input"  # no input block, or fewer than asked
    NO_MESSAGE = "no_message"  # code_f without a message
    NO_FUNCTION = "no_function"  # no function definition in the program
    MULTIPLE_FUNCTIONS = "multiple_functions"
    TEST_CODE = "test_code"  # the program contains its own test or input
    BAD_COMPOSITE = "bad_composite"  # the assigned helpers are not all called, or are redefined
    TOO_LONG = "too_long"  # program, value or the student's prompt exceeds its limit
    SYNTAX = "syntax"  # does not parse
    BANNED = "banned"  # imports or calls something on the ban list
    BAD_INPUT = "bad_input"  # an input is not the literal argument list of one call
    EXCEPTION = "exception"  # the program raised (not for code_e)
    TIMEOUT = "timeout"  # CPU or wall-clock limit
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"
    BAD_VALUE = "bad_value"  # the result is not a plain built-in value
    NONDETERMINISTIC = "nondeterministic"  # two interpreters disagree
    POLICY = "policy"  # killed for a forbidden system call
    CRASH = "crash"  # the process ended without an answer
    DUPLICATE = "duplicate"  # same normalised program and inputs as an earlier task
    UNVERIFIED = "unverified"  # infrastructure failed; never charged to the model


@dataclass(frozen=True, slots=True)
class Candidate:
    """A well-formed proposal that has not been executed yet."""

    kind: TaskKind
    program: str  # source text that defines ``f``; its own imports included
    inputs: tuple[str, ...]  # one argument list for code_o/code_i/code_e, ``num_inputs`` for code_f
    imports: tuple[str, ...] = ()  # import statements found in the program, as AZR records them
    message: str = ""  # code_f only
    original_program: str = ""  # before composite helpers were prepended; "" when there were none
    composites: tuple[str, ...] = ()  # sources of the helpers ``g_0``, ``g_1``, ...


@dataclass(frozen=True, slots=True)
class Task:
    """A verified task. ``len(outputs) == len(inputs)``; outputs are canonical text, or for code_e a name."""

    task_id: str  # digest of kind, normalised program and inputs: equal for duplicates
    kind: TaskKind
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    imports: tuple[str, ...] = ()
    message: str = ""
    author: str = ""  # member name, or "seed"
    step: int = 0  # training step at which it was proposed; 0 for seeds
    original_program: str = ""
    composites: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a proposal is not a task."""

    reason: RejectReason
    detail: str = ""  # one line for people: what, where


@dataclass(frozen=True, slots=True)
class Answer:
    """A student's answer to one task: ``text`` is the argument list, literal, program or exception name."""

    text: str
    well_formed: bool  # the completion obeys the format rule


class Outcome(StrEnum):
    """What became of one attempt."""

    CORRECT = "correct"
    WRONG = "wrong"  # well-formed, judged, not correct (also when the answer raises or times out)
    MALFORMED = "malformed"  # breaks the format rule
    UNJUDGED = "unjudged"  # infrastructure failed: the attempt is dropped and counted


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one attempt."""

    outcome: Outcome
    accuracy: float = 0.0  # in [0, 1]: share of hidden pairs for code_f, else 0 or 1
    detail: str = ""  # sandbox status or reason, for logs
