"""LiveCodeBench: public and private tests, call-based or over standard input, each program isolated.

Deviations from upstream's in-process runner, all of which only let right programs pass: a script is a real script, so
``sys.stdin.buffer``, ``open(0)`` and module-level ``global`` work.
"""

import json
from typing import Any

from eval.code.compare import lcb_call_equal, lcb_stdout_equal
from eval.code.runner import CodeRunner, RunStatus
from eval.data.lcb_tests import BadTests, LcbTest, decode_tests
from eval.types import Problem, Status

UPSTREAM_TIME_LIMIT_S = 6.0  # per test, upstream's default
AZR_TIME_LIMIT_S = 60.0  # as AZR's evaluation passed


def tests_of(problem: Problem) -> list[LcbTest]:
    """Public then private tests. Raises BadTests."""
    return decode_tests(problem.payload["public"]) + decode_tests(problem.payload["private"])


def grade_program(runner: CodeRunner, problem: Problem, program: str, limit_s: float) -> tuple[Status, str]:
    """Status of one program over all tests, and the first failure."""
    tests = tests_of(problem)
    if not tests:
        raise BadTests(f"{problem.problem_id} has no tests")
    if problem.payload["function"]:
        return _grade_calls(runner, problem.payload["function"], tests, program, limit_s)
    return _grade_scripts(runner, tests, program, limit_s)


def _grade_calls(
    runner: CodeRunner, function: str, tests: list[LcbTest], program: str, limit_s: float
) -> tuple[Status, str]:
    inputs = [[json.loads(line) for line in test.input.split("\n")] for test in tests]

    def compare(index: int, output: Any, _: float) -> bool:
        return lcb_call_equal(output, tests[index].output)

    run = runner.run_calls(
        program,
        function,
        inputs,
        [limit_s] * len(tests),
        compare,
        prelude=True,
        solution_class=True,
        total_s=(limit_s + 1) * len(tests) + 5,
    )
    if run.status is RunStatus.OK:
        return Status.CORRECT, ""
    if run.status is RunStatus.TIMEOUT:
        return Status.TIMEOUT, f"test {run.done}: time limit"
    detail = "wrong output" if run.status is RunStatus.STOPPED else f"{run.status} {run.detail}".strip()
    return Status.WRONG, f"test {run.done}: {detail}"


def _grade_scripts(runner: CodeRunner, tests: list[LcbTest], program: str, limit_s: float) -> tuple[Status, str]:
    for index, test in enumerate(tests):
        run = runner.run_script(program, test.input, limit_s, prelude=True)
        if run.status is RunStatus.TIMEOUT:
            return Status.TIMEOUT, f"test {index}: time limit"
        if run.status is not RunStatus.OK:
            return Status.WRONG, f"test {index}: {run.status} {run.detail}".strip()
        if not lcb_stdout_equal(run.stdout, test.output):
            return Status.WRONG, f"test {index}: wrong output"
    return Status.CORRECT, ""
