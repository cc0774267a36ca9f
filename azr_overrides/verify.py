"""Verdicts for tasks, answers and seed files: one JSON object a line in, one out, in order.

    python -m azr_overrides.verify tasks.jsonl > verdicts.jsonl
    cat tasks.jsonl | python -m azr_overrides.verify -

Fields of a line: ``program`` (or AZR's ``snippet``), ``input`` or ``inputs``; optional ``id``, ``kind``
(code_o if left out, or code_f for a line with ``inputs`` and ``message``), ``imports``, ``message``, the
recorded ``output`` or ``outputs``, and ``answer`` (the text inside the answer block) or ``completion`` (the
model's whole text).

A task is valid if it parses, mentions nothing banned, and returns one plain value for each input, the same in
two interpreters and the same as recorded. With an answer, ``correct``, ``reward`` and ``format_ok`` follow.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TextIO

from azr_overrides.rewards.attempts import student_reward
from azr_overrides.sandbox import IsolationLevel, Sandbox, SandboxConfig, SandboxError
from azr_overrides.tasks.parsing import ParseOptions, parse_answer
from azr_overrides.tasks.policy import DEFAULT_BANNED_WORDS
from azr_overrides.tasks.types import Answer, Candidate, Outcome, Rejection, Task, TaskKind
from azr_overrides.tasks.values import NotAValue, same_value
from azr_overrides.tasks.verification import VerificationConfig, Verifier, with_imports

_IN_FLIGHT = 64
_PROGRESS_EVERY_S = 5.0
BAD_LINE = "bad_line"
OUTPUT_DIFFERS = "output_differs"


class BadLine(ValueError):
    """A line that is not a task; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the input."""

    identity: object
    candidate: Candidate
    recorded: tuple[str, ...]  # outputs, or () if the line has none
    answer: str | None
    completion: str | None
    many: bool  # whether the line speaks of "outputs" or of one "output"


def parse_line(text: str) -> Line:
    """Read one line of the input. Raises BadLine."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadLine(f"not JSON: {error}") from error
    if not isinstance(row, dict):
        raise BadLine("not a JSON object")
    program = _text(row, "program" if "program" in row else "snippet")
    many = "inputs" in row
    inputs = _texts(row, "inputs") if many else (_text(row, "input"),)
    name = row.get("kind", "code_f" if many and "message" in row else "code_o")
    try:
        kind = TaskKind(name)
    except ValueError as error:
        raise BadLine(f"kind is {name!r}; it must be one of {', '.join(TaskKind)}") from error
    if not inputs or kind is not TaskKind.CODE_F and len(inputs) != 1:
        wanted = "at least one" if kind is TaskKind.CODE_F else "one"
        raise BadLine(f"{len(inputs)} inputs; {kind} takes {wanted}")
    recorded = _texts(row, "outputs") if "outputs" in row else ()
    if "output" in row:
        recorded = (_text(row, "output"),)
    if recorded and len(recorded) != len(inputs):
        raise BadLine(f"{len(inputs)} inputs but {len(recorded)} outputs")
    imports = _texts(row, "imports") if "imports" in row else ()
    message = _text(row, "message") if "message" in row else ""
    return Line(
        identity=row.get("id"),
        candidate=Candidate(kind, with_imports(imports, program), inputs, imports, message),
        recorded=recorded,
        answer=_text(row, "answer") if "answer" in row else None,
        completion=_text(row, "completion") if "completion" in row else None,
        many=many,
    )


def _text(row: dict, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise BadLine(f"{name} is missing" if value is None else f"{name} is not a string")
    return value


def _texts(row: dict, name: str) -> tuple[str, ...]:
    value = row.get(name)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadLine(f"{name} is not a list of strings")
    return tuple(value)


async def verify_line(verifier: Verifier, number: int, text: str, options: ParseOptions) -> dict:
    """The output object for one line of the input."""
    try:
        line = parse_line(text)
    except BadLine as error:
        return {"id": None, "line": number, "valid": False, "outcome": BAD_LINE, "reason": str(error)}
    task = await verifier.validate(line.candidate)
    if isinstance(task, Rejection):
        found = {"valid": False, "outcome": task.reason.value, "reason": task.detail}
    elif difference := _difference(task, line.recorded):
        found = {"valid": False, "outcome": OUTPUT_DIFFERS, "reason": difference, **_outputs(task, line.many)}
    else:
        found = {"valid": True, "outcome": "task", "reason": "", **_outputs(task, line.many)}
    verdict = {"id": line.identity, **found}
    answer = _answer(line, options)
    if answer is not None:
        verdict |= await _judge(verifier, task, answer) if found["valid"] else _unjudged(answer)
    return verdict


def _outputs(task: Task, many: bool) -> dict:
    return {"outputs": list(task.outputs)} if many else {"output": task.outputs[0]}


def _difference(task: Task, recorded: tuple[str, ...]) -> str:
    """How the recorded outputs differ from the measured ones; empty if they don't."""
    for index, (measured, text) in enumerate(zip(task.outputs, recorded, strict=False)):
        if task.kind is TaskKind.CODE_E:
            same = measured.casefold() == text.strip().casefold()
        else:
            try:
                same = same_value(measured, text)
            except NotAValue:
                return f"recorded output {index} is not a literal value: {text[:80]}"
        if not same:
            return f"recorded output {index} is {text[:80]}, the program returns {measured[:80]}"
    return ""


def _answer(line: Line, options: ParseOptions) -> Answer | None:
    if line.completion is not None:
        return parse_answer(line.candidate.kind, line.completion, options)
    return None if line.answer is None else Answer(line.answer, well_formed=True)


async def _judge(verifier: Verifier, task: Task | Rejection, answer: Answer) -> dict:
    assert isinstance(task, Task)
    verdict = await verifier.judge(task, answer)
    if verdict.outcome is Outcome.UNJUDGED:
        return _unjudged(answer) | {"detail": verdict.detail}
    return {
        "correct": verdict.outcome is Outcome.CORRECT,
        "accuracy": verdict.accuracy,
        "reward": student_reward(verdict),
        "format_ok": answer.well_formed,
        "detail": verdict.detail,
    }


def _unjudged(answer: Answer) -> dict:
    return {"correct": None, "reward": None, "format_ok": answer.well_formed}


async def verify_lines(verifier: Verifier, lines: Iterable[str], options: ParseOptions) -> AsyncIterator[dict]:
    """Output objects in the order of the input, with a bounded number of lines in flight. Empty lines are
    skipped.
    """
    pending: deque[asyncio.Task[dict]] = deque()
    try:
        for number, text in _numbered(lines):
            pending.append(asyncio.create_task(verify_line(verifier, number, text, options)))
            if len(pending) >= _IN_FLIGHT:
                yield await pending.popleft()
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()


def _numbered(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(lines, start=1) if line.strip())


async def run(source: TextIO, target: TextIO, arguments: argparse.Namespace) -> Counter[str]:
    """Verify ``source`` into ``target``; return the number of lines by outcome. Reports progress on stderr."""
    config = SandboxConfig(
        slots=arguments.slots, cpu_s=arguments.seconds, wall_s=arguments.seconds, min_isolation=arguments.min_isolation
    )
    verification = VerificationConfig(banned_words=tuple(arguments.banned_words))
    options = ParseOptions(extraction_type=arguments.extraction_type)
    outcomes: Counter[str] = Counter()
    reported = time.monotonic()
    async with Sandbox(config) as sandbox:
        print(sandbox.isolation.summary(), file=sys.stderr)
        async for verdict in verify_lines(Verifier(sandbox, verification), source, options):
            outcomes[verdict["outcome"]] += 1
            print(json.dumps(verdict), file=target)
            if verdict["outcome"] == BAD_LINE:
                print(f"line {verdict['line']}: {verdict['reason']}", file=sys.stderr)
            if time.monotonic() - reported > _PROGRESS_EVERY_S:
                reported = time.monotonic()
                print(_summary(outcomes), file=sys.stderr)
    return outcomes


def _summary(outcomes: Counter[str]) -> str:
    others = ", ".join(f"{count} {name}" for name, count in outcomes.most_common() if name != "task")
    return f"{outcomes.total()} lines: {outcomes['task']} valid" + (f", {others}" if others else "")


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m azr_overrides.verify",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", metavar="FILE", help="JSON lines, or - for standard input")
    parser.add_argument("--slots", type=int, default=4, help="programs run at once (default 4)")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="limit of CPU time and of wall-clock time (default 10)"
    )
    parser.add_argument(
        "--banned-words",
        nargs="*",
        default=DEFAULT_BANNED_WORDS,
        metavar="WORD",
        help="modules that programs may not mention (default: AZR's list)",
    )
    parser.add_argument(
        "--extraction-type", default=ParseOptions().extraction_type, help="how completions are read (AZR's names)"
    )
    parser.add_argument(
        "--min-isolation",
        default="seccomp",
        choices=[level.value for level in IsolationLevel],
        help="refuse to run programs below this measured level (default seccomp)",
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Entry point. Returns the exit status."""
    options = parse_arguments(arguments)
    try:
        if options.file == "-":
            outcomes = asyncio.run(run(sys.stdin, sys.stdout, options))
        else:
            with open(options.file, encoding="utf-8", errors="surrogateescape") as source:
                outcomes = asyncio.run(run(source, sys.stdout, options))
    except (OSError, SandboxError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    print(_summary(outcomes), file=sys.stderr)
    return 1 if outcomes[BAD_LINE] else 0


if __name__ == "__main__":
    sys.exit(main())
