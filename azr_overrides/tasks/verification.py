"""From proposals to tasks, and from answers to verdicts, by running programs in the sandbox.

Expected outputs never enter the sandbox: children return text, and this module rebuilds and compares values.
"""

import ast
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from azr_overrides.sandbox import RunRequest, RunResult, Sandbox, Status
from azr_overrides.sandbox.template.arguments import BadInput, parse_arguments
from azr_overrides.tasks.guessing import commonest_share, varied_inputs
from azr_overrides.tasks.policy import DEFAULT_BANNED_WORDS, find_banned, find_nondeterminism, parse_program
from azr_overrides.tasks.types import (
    Answer,
    Candidate,
    Outcome,
    Rejection,
    RejectReason,
    Task,
    TaskKind,
    Verdict,
)
from azr_overrides.tasks.values import NotAValue, canonical, contains_nan, parse_value, same_value

NO_ERROR = "NoError"  # what a code_e program that returns is called
FUNCTION = "f"

_REASONS = {
    Status.EXCEPTION: RejectReason.EXCEPTION,
    Status.TIMEOUT: RejectReason.TIMEOUT,
    Status.CPU_LIMIT: RejectReason.TIMEOUT,
    Status.MEMORY: RejectReason.MEMORY,
    Status.OUTPUT_LIMIT: RejectReason.OUTPUT_LIMIT,
    Status.BAD_INPUT: RejectReason.BAD_INPUT,
    Status.BAD_VALUE: RejectReason.BAD_VALUE,
    Status.POLICY: RejectReason.POLICY,
    Status.CRASH: RejectReason.CRASH,
    Status.PROTOCOL: RejectReason.CRASH,
    Status.WORKER_LOST: RejectReason.UNVERIFIED,
    Status.CANCELLED: RejectReason.UNVERIFIED,
}


@dataclass(frozen=True, slots=True)
class VerificationConfig:
    """What a task may contain. Lengths are characters."""

    banned_words: tuple[str, ...] = DEFAULT_BANNED_WORDS  # AZR's list; see ``policy.find_banned``
    banned_keywords: tuple[str, ...] = ()  # for code_e programs: assert, raise, try, except
    max_program_chars: int = 16_384
    max_value_chars: int = 4_096  # one input, one output, one literal answer

    def __post_init__(self) -> None:
        if self.max_program_chars <= 0 or self.max_value_chars <= 0:
            raise ValueError("max_program_chars and max_value_chars must be positive")
        if unknown := set(self.banned_keywords) - {"assert", "raise", "try", "except"}:
            raise ValueError(f"unknown banned_keywords {sorted(unknown)}; known: assert, raise, try, except")


class Verifier:
    """Makes tasks of candidates and verdicts of answers. Stateless; call it as often at once as you like."""

    def __init__(self, sandbox: Sandbox, config: VerificationConfig | None = None) -> None:
        self._sandbox = sandbox
        self._config = config or VerificationConfig()

    async def validate(self, candidate: Candidate, author: str = "", step: int = 0) -> Task | Rejection:
        """Decide whether a proposal is a task, and compute its outputs.

        The program runs on every input in two interpreters with different hash seeds; in the second one it is
        called on all inputs and then on all of them again, backwards, so that state kept between calls shows
        too. All outputs must be equal, plain values without NaN, and within the size limits. A code_e task's
        output is the name of the exception, or ``NoError``.
        """
        if rejection := self._check_text(candidate):
            return rejection
        inputs = candidate.inputs
        first = await self._sandbox.run(RunRequest(candidate.program, inputs, FUNCTION, interpreter=0))
        outputs = [self._output(candidate.kind, result) for result in first]
        if rejection := next((output for output in outputs if isinstance(output, Rejection)), None):
            return rejection
        limits = self._sandbox.config
        second = await self._sandbox.run(
            RunRequest(
                candidate.program,
                inputs + inputs[::-1],
                FUNCTION,
                interpreter=1,
                cpu_s=2 * limits.cpu_s,
                wall_s=2 * limits.wall_s,
            )
        )
        for result, expected in zip(second, outputs + outputs[::-1], strict=True):
            assert isinstance(expected, str)
            output = self._output(candidate.kind, result)
            if isinstance(output, Rejection):
                if output.reason is RejectReason.EXCEPTION:
                    detail = f"raised in a second run: {output.detail}"
                    return Rejection(RejectReason.NONDETERMINISTIC, detail)
                return output
            if not _same_output(candidate.kind, output, expected):
                detail = f"{expected[:80]} in one run, {output[:80]} in another"
                return Rejection(RejectReason.NONDETERMINISTIC, detail)
        return Task(
            task_id=task_id(candidate.kind, candidate.program, inputs),
            kind=candidate.kind,
            program=candidate.program,
            inputs=inputs,
            outputs=tuple(str(output) for output in outputs),
            imports=candidate.imports,
            message=candidate.message,
            author=author,
            step=step,
            original_program=candidate.original_program,
            composites=candidate.composites,
        )

    async def judge(self, task: Task, answer: Answer) -> Verdict:
        """Decide whether an answer solves a task.

        An answer that breaks the format rule is MALFORMED and is not run. A code_f answer is judged on the
        hidden inputs, with their share as accuracy; it is CORRECT if all of them pass.
        """
        if not answer.well_formed:
            return Verdict(Outcome.MALFORMED, detail="breaks the format rule")
        match task.kind:
            case TaskKind.CODE_O:
                return self._judge_output(task, answer)
            case TaskKind.CODE_I:
                return await self._judge_input(task, answer)
            case TaskKind.CODE_F:
                return await self._judge_program(task, answer)
            case TaskKind.CODE_E:
                return _judge_error_name(task, answer)

    async def guess_rate(self, task: Task, variations: int) -> float | None:
        """How often an answer that ignores the input is right, in [0, 1].

        For code_o, code_e and code_i: the share of varied inputs on which the program returns what it returns on the
        task's own, where a call that fails returns something else. A random input solves a code_i task that often. For
        code_f: the share of hidden outputs that equal the commonest shown one.

        Args:
            variations: inputs to run, at most.

        Returns:
            None if the inputs can't be varied, or the sandbox lost them.
        """
        if task.kind is TaskKind.CODE_F:
            visible = hidden_split(len(task.outputs))
            return commonest_share(task.outputs[:visible], task.outputs[visible:])
        inputs = varied_inputs(task.inputs[0], variations, task.task_id)
        if not inputs:
            return None
        results = await self._sandbox.run(RunRequest(task.program, inputs, FUNCTION))
        if any(result.status.is_infrastructure for result in results):
            return None
        outputs = [self._output(task.kind, result) for result in results]
        own = task.outputs[0]
        return sum(isinstance(one, str) and _same_output(task.kind, one, own) for one in outputs) / len(outputs)

    def _check_text(self, candidate: Candidate) -> Rejection | None:
        """Everything that can be said about a candidate without running it."""
        config = self._config
        if not candidate.inputs:
            return Rejection(RejectReason.NO_INPUT, "no input")
        if len(candidate.program) > config.max_program_chars:
            return _too_long("program", config.max_program_chars)
        if max(map(len, candidate.inputs)) > config.max_value_chars:
            return _too_long("input", config.max_value_chars)
        try:
            tree = parse_program(candidate.program)
        except SyntaxError as error:
            return Rejection(RejectReason.SYNTAX, str(error)[:200])
        if not _defines(tree, FUNCTION):
            return Rejection(RejectReason.NO_FUNCTION, f"no function named {FUNCTION}")
        keywords = config.banned_keywords if candidate.kind is TaskKind.CODE_E else ()
        if banned := find_banned(candidate.program, config.banned_words, keywords) or find_nondeterminism(tree):
            return Rejection(RejectReason.BANNED, f"uses {banned}")
        for text in candidate.inputs:
            try:
                parse_arguments(text)
            except BadInput as error:
                return Rejection(RejectReason.BAD_INPUT, str(error)[:200])
        return None

    def _output(self, kind: TaskKind, result: RunResult) -> str | Rejection:
        """The output of one call as the task states it."""
        if kind is TaskKind.CODE_E and result.status is Status.EXCEPTION:
            return result.error_type
        if result.status is not Status.OK:
            detail = " ".join(filter(None, (result.error_type, result.message))) or result.status.value
            return Rejection(_REASONS[result.status], detail[:200])
        if kind is TaskKind.CODE_E:
            return NO_ERROR
        if len(result.value) > self._config.max_value_chars:
            return _too_long("output", self._config.max_value_chars)
        try:
            value = parse_value(result.value)
            if contains_nan(value):
                return Rejection(RejectReason.BAD_VALUE, "NaN, which equals no answer")
            return canonical(value)
        except NotAValue as error:
            return Rejection(RejectReason.BAD_VALUE, str(error)[:200])

    def _judge_output(self, task: Task, answer: Answer) -> Verdict:
        try:
            correct = same_value(answer.text, task.outputs[0], self._config.max_value_chars)
        except NotAValue as error:
            return Verdict(Outcome.WRONG, detail=f"not a literal value: {error}"[:200])
        return Verdict(Outcome.CORRECT, 1.0) if correct else Verdict(Outcome.WRONG, detail="another value")

    async def _judge_input(self, task: Task, answer: Answer) -> Verdict:
        if len(answer.text) > self._config.max_value_chars:
            return Verdict(Outcome.WRONG, detail="the input is too long")
        return await self._judge_calls(task.program, (answer.text,), task.outputs)

    async def _judge_program(self, task: Task, answer: Answer) -> Verdict:
        if len(answer.text) > self._config.max_program_chars:
            return Verdict(Outcome.WRONG, detail="the program is too long")
        visible = hidden_split(len(task.inputs))
        program = with_imports(task.imports, answer.text)
        return await self._judge_calls(program, task.inputs[visible:], task.outputs[visible:])

    async def _judge_calls(self, program: str, inputs: tuple[str, ...], expected: tuple[str, ...]) -> Verdict:
        results = await self._sandbox.run(RunRequest(program, inputs, FUNCTION))
        lost = next((result for result in results if result.status.is_infrastructure), None)
        if lost is not None:
            return Verdict(Outcome.UNJUDGED, detail=lost.status.value)
        passed = [_returns(result, output) for result, output in zip(results, expected, strict=True)]
        if all(passed):
            return Verdict(Outcome.CORRECT, 1.0)
        failed = results[passed.index(False)]
        detail = failed.status.value if failed.status is not Status.OK else "another value"
        reason = failed.error_type or failed.message
        detail = f"{detail}: {reason}" if reason else detail
        return Verdict(Outcome.WRONG, sum(passed) / len(passed), detail[:200])


def _too_long(what: str, limit: int) -> Rejection:
    return Rejection(RejectReason.TOO_LONG, f"{what} of more than {limit} characters")


def hidden_split(count: int) -> int:
    """How many of a code_f task's ``count`` input/output pairs the student sees; the rest decides."""
    return count // 2


def with_imports(imports: Sequence[str], program: str) -> str:
    """``program`` preceded by those import statements that it does not have as a line of its own."""
    present = {line.strip() for line in program.splitlines()}
    missing = [line for line in imports if line.strip() not in present]
    return "\n".join([*missing, program])


def task_id(kind: TaskKind, program: str, inputs: Sequence[str]) -> str:
    """Digest of what a task is: equal for programs and inputs that differ in formatting, comments or
    docstrings only.

    Names are kept. Text that does not parse stands for itself.
    """
    parts = [kind.value, _normal_program(program), *(_normal_input(text) for text in inputs)]
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _normal_program(program: str) -> str:
    try:
        tree = parse_program(program)
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                node.body = [statement for statement in node.body if not _is_bare_string(statement)]
        return ast.dump(tree)
    except (SyntaxError, RecursionError):
        return program.strip()


def _normal_input(text: str) -> str:
    try:
        return ast.dump(parse_arguments(text))
    except BadInput:
        return text.strip()


def _is_bare_string(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _defines(tree: ast.Module, name: str) -> bool:
    return any(
        isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and node.name == name
        or isinstance(node, ast.Name)
        and isinstance(node.ctx, ast.Store)
        and node.id == name
        for node in ast.walk(tree)
    )


def _same_output(kind: TaskKind, first: str, second: str) -> bool:
    return first == second or kind is not TaskKind.CODE_E and same_value(first, second)


def _returns(result: RunResult, expected: str) -> bool:
    if result.status is not Status.OK:
        return False
    try:
        return same_value(result.value, expected)
    except NotAValue:
        return False


def _judge_error_name(task: Task, answer: Answer) -> Verdict:
    """Names are compared without case, module path, or what follows a space or a colon, as in a traceback."""
    words = answer.text.split(maxsplit=1)
    named = words[0].partition(":")[0].rpartition(".")[2].casefold() if words else ""
    if named == task.outputs[0].rpartition(".")[2].casefold():
        return Verdict(Outcome.CORRECT, 1.0)
    return Verdict(Outcome.WRONG, detail="another exception")
