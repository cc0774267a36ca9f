"""HumanEval+ and MBPP+: evalplus' inputs, oracles, tolerances and sanitiser; our own isolated execution.

evalplus runs a program in the process that holds the expected outputs and compares with the program's own ``__eq__``.
Here the program only ever sees inputs, and what it returns is compared as data.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import evalplus
from evalplus.data.mbpp import mbpp_deserialize_inputs
from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
from evalplus.sanitize import sanitize

from eval.code import values
from eval.code.compare import evalplus_equal
from eval.code.runner import CodeRunner, RunStatus
from eval.types import Problem, Status

# As AZR's evaluation passed to evalplus: --min-time-limit 10 --gt-time-limit-factor 8.
MIN_TIME_LIMIT_S = 10.0
TIME_LIMIT_FACTOR = 8.0
_TOTAL_LIMIT_S = 61.0  # of one suite of one program, as in evalplus; more where the reference solution needs more
_REFERENCE_LIMIT_S = 600.0
_CACHE_VERSION = 3
SUITES = ("base", "plus")


@dataclass(frozen=True, slots=True)
class Reference:
    """Expected outputs of one suite and how long the reference solution took for each, in seconds."""

    outputs: list[Any]
    seconds: list[float]


@dataclass(frozen=True, slots=True)
class EvalplusTask:
    dataset: str  # "humaneval" or "mbpp", as evalplus says
    task_id: str
    entry_point: str
    inputs: dict[str, list[Any]]  # by suite
    atol: float
    reference_program: str


def as_task(problem: Problem) -> EvalplusTask:
    payload = problem.payload
    is_mbpp = problem.benchmark == "mbpp_plus"
    inputs = {}
    for suite in SUITES:
        raw = payload[f"{suite}_input"]
        inputs[suite] = mbpp_deserialize_inputs(problem.problem_id, raw) if is_mbpp else raw
    return EvalplusTask(
        dataset="mbpp" if is_mbpp else "humaneval",
        task_id=problem.problem_id,
        entry_point=payload["entry_point"],
        inputs=inputs,
        atol=float(payload["atol"]),
        reference_program=payload["prompt"] + payload["canonical_solution"],
    )


class ReferenceFailure(RuntimeError):
    """A reference solution did not run: the data, the limits or this machine are at fault."""


class GroundTruth:
    """Expected outputs of the tasks, computed once with the reference solutions and kept in one file.

    The file's name carries the data's hash, so other data can't pick up wrong outputs.
    """

    def __init__(self, directory: Path, data_sha256: str) -> None:
        name = f"evalplus-{evalplus.__version__}-{data_sha256[:16]}-{_CACHE_VERSION}.jsonl"
        self._path = directory / name
        self._known: dict[str, dict[str, Reference]] = {}
        if self._path.exists():
            for line in self._path.read_text().splitlines():
                try:
                    row = json.loads(line)
                except json.JSONDecodeError:
                    continue  # cut off by a crash: that task is computed again
                self._known[row["task"]] = {
                    suite: Reference([values.decode(form) for form in row[suite][0]], row[suite][1]) for suite in SUITES
                }

    def __contains__(self, task_id: str) -> bool:
        return task_id in self._known

    def __getitem__(self, task_id: str) -> dict[str, Reference]:
        return self._known[task_id]

    def compute(self, runner: CodeRunner, task: EvalplusTask) -> dict[str, Reference]:
        """Run the reference solution. Raises ReferenceFailure when it fails."""
        return {suite: self._run_reference(runner, task, suite) for suite in SUITES}

    def store(self, task_id: str, references: dict[str, Reference]) -> None:
        self._known[task_id] = references
        row: dict[str, Any] = {"task": task_id}
        for suite, reference in references.items():
            row[suite] = [[values.encode(output) for output in reference.outputs], reference.seconds]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")

    def _run_reference(self, runner: CodeRunner, task: EvalplusTask, suite: str) -> Reference:
        outputs: list[Any] = []
        seconds: list[float] = []

        def collect(_: int, value: Any, elapsed: float) -> bool:
            outputs.append(value)
            seconds.append(elapsed)
            return True

        inputs = task.inputs[suite]
        limits = [_REFERENCE_LIMIT_S] * len(inputs)
        run = runner.run_calls(
            task.reference_program, task.entry_point, inputs, limits, collect, total_s=_REFERENCE_LIMIT_S
        )
        if run.status is not RunStatus.OK:
            raise ReferenceFailure(
                f"{task.task_id}, {suite} input {run.done}: the reference solution ended with {run.status} {run.detail}"
            )
        if task.dataset == "mbpp" and task.entry_point in MBPP_OUTPUT_NOT_NONE_TASKS:
            outputs = [output is not None for output in outputs]
        return Reference(outputs, seconds)


def grade_program(
    runner: CodeRunner, task: EvalplusTask, program: str, references: dict[str, Reference]
) -> tuple[Status, str]:
    """Status of one program over both suites, and the first failure. Correct means every base and plus test passes."""
    for suite in SUITES:
        reference = references[suite]
        limits = [max(MIN_TIME_LIMIT_S, TIME_LIMIT_FACTOR * seconds) for seconds in reference.seconds]
        run = runner.run_calls(
            program,
            task.entry_point,
            task.inputs[suite],
            limits,
            _comparison(task, suite, reference),
            total_s=min(max(_TOTAL_LIMIT_S, 3 * sum(reference.seconds)), sum(limits) + 2),
        )
        if run.status is RunStatus.OK:
            continue
        if run.status is RunStatus.TIMEOUT:
            return Status.TIMEOUT, f"{suite} input {run.done}: time limit"
        detail = "wrong output" if run.status is RunStatus.STOPPED else f"{run.status} {run.detail}".strip()
        return Status.WRONG, f"{suite} input {run.done}: {detail}"
    return Status.CORRECT, ""


def _comparison(task: EvalplusTask, suite: str, reference: Reference) -> Callable[[int, Any, float], bool]:
    def compare(index: int, output: Any, _: float) -> bool:
        arguments = task.inputs[suite][index]
        expected = reference.outputs[index]
        return evalplus_equal(task.dataset, task.entry_point, arguments, output, expected, task.atol)

    return compare


def sanitized(program: str, entry_point: str) -> str:
    """evalplus' clean-up: the longest part that parses, reduced to what the entry point needs."""
    return sanitize(program, entry_point)
