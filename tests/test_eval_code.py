"""Programs are graded in isolation: right ones pass, wrong and hostile ones don't, and evalplus agrees."""

import json
import os
from pathlib import Path

import pytest

from azr_overrides.sandbox.types import IsolationLevel
from eval.code import lcb_grader, values
from eval.code.compare import lcb_call_equal, lcb_stdout_equal
from eval.code.evalplus_grader import GroundTruth, as_task, grade_program
from eval.code.isolation import measure, require
from eval.code.programs import program_of
from eval.code.runner import CodeRunner, Limits, RunnerFailure, RunStatus
from eval.data.lcb_tests import BadTests, decode_tests
from eval.data.loaders import load_problems
from eval.data.registry import BENCHMARKS
from eval.prompts.template import AnswerStyle
from eval.types import Problem, Profile, Status, UsageError
from tests.eval_support import BENCHMARK_DATA, humaneval_rows, lcb_rows, needs_benchmark_data, packed_tests, write_jsonl

SLOW_REFERENCES = {"Mbpp/255", "Mbpp/392", "Mbpp/599"}  # each takes ten seconds to a minute
CHECK_ALL = "POPULORA_CHECK_ALL_REFERENCES"


@pytest.fixture(scope="module")
def runner():
    with CodeRunner(workers=1) as code_runner:
        yield code_runner


def call(runner: CodeRunner, program: str, *inputs: list, limit_s: float = 20.0) -> tuple[RunStatus, list]:
    outputs = []

    def collect(_: int, value: object, __: float) -> bool:
        outputs.append(value)
        return True

    run = runner.run_calls(program, "f", list(inputs), [limit_s] * len(inputs), collect)
    return run.status, outputs


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5, "é\ud800", None, True, b"\x00\xff", -0.0, 10**30],
        ({1: (2, [3])}, {4, 5}, frozenset({"a"}), 1 + 2j),
        [float("inf"), -float("inf"), 10 ** (5000)],
    ],
)
def test_values_survive_the_way_there_and_back(value):
    assert values.decode(json.loads(values.dumps(value))) == value


def test_an_object_that_claims_to_equal_everything_arrives_as_what_it_is():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    class Anything:
        def __eq__(self, other):
            return True

    assert values.decode(json.loads(values.dumps(Liar(3)))) != 4
    assert values.decode(json.loads(values.dumps(Anything()))) != 4
    assert values.decode(json.loads(values.dumps(Anything()))) is not None


def test_long_lists_travel_as_digests_that_tell_them_apart():
    long, other = list(range(100_001)), [*range(100_000), -1]
    there_and_back = [values.decode(json.loads(values.dumps(x))) for x in (long, list(long), other)]
    assert there_and_back[0] == there_and_back[1] != there_and_back[2]


@pytest.mark.parametrize("form", [{}, ["x"], ["i", "zz"], ["n", "load", 1], ["t"], [1, 2], ["d", [[1]]]])
def test_malformed_values_are_refused(form):
    with pytest.raises(values.BadEncoding):
        values.decode(form)


def test_functions_are_called_with_their_inputs(runner):
    status, outputs = call(runner, "def f(x, y):\n    return (x, {y})", [1, "a"], [[2], None])
    assert (status, outputs) == (RunStatus.OK, [(1, {"a"}), ([2], {None})])


def test_scripts_read_standard_input_in_every_usual_way(runner):
    for program in (
        "n = int(input()); print(sum(map(int, input().split())))",
        "import sys; print(sum(map(int, sys.stdin.buffer.read().split()[1:])))",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "total = 0\ndef add(x):\n    global total\n    total += x\nfor x in [*map(int, [*sys.stdin][1].split())]:\n"
        "    add(x)\nif __name__ == '__main__':\n    print(total)",
    ):
        assert runner.run_script(program, "3\n1 2 3\n", 20.0, prelude=True).stdout.strip() == "6", program


def test_limits_end_programs_that_do_not_end_themselves(runner):
    assert call(runner, "def f():\n    while True: pass", [], limit_s=1.0)[0] is RunStatus.TIMEOUT
    assert runner.run_script("while True: pass", "", 1.0).status is RunStatus.TIMEOUT
    assert call(runner, "def f():\n    return [0] * 10**10", [])[0] is RunStatus.EXCEPTION
    with CodeRunner(1, limits=Limits(output_bytes=1000)) as small:
        assert small.run_script("print('x' * 5000)", "", 20.0).status is RunStatus.OUTPUT_LIMIT
        assert call(small, "def f():\n    return 'x' * 5000", [])[0] is RunStatus.OUTPUT_LIMIT


def test_a_runner_goes_on_after_its_template_was_killed(runner):
    runner._all[0].process.kill()
    with pytest.raises((RunnerFailure, OSError)):
        call(runner, "def f():\n    return 1", [])
    assert call(runner, "def f():\n    return 1", []) == (RunStatus.OK, [1])


def test_isolation_is_measured_and_a_weak_one_is_refused(runner):
    report = measure(runner)
    require(report, report.level.value)
    with CodeRunner(1, layers=()) as open_runner:
        weak = measure(open_runner)
    assert weak.level is IsolationLevel.RLIMITS and "succeeded" in weak.findings.values()
    with pytest.raises(UsageError, match="--min-isolation rlimits"):
        require(weak, "seccomp")


HOSTILE = {
    "always equal": "class E:\n    def __eq__(self, o): return True\n    def __ne__(self, o): return False\n"
    "def running_sum(xs): return E()",
    "equal number": "class E(list):\n    def __eq__(self, o): return True\ndef running_sum(xs): return E()",
    "exit at once": "import os\nos._exit(0)",
    "exit in the call": "import os\ndef running_sum(xs): os._exit(0)",
    "system exit": "import sys\ndef running_sum(xs): sys.exit(0)",
    "patch the checker": "import eval.code.compare as c\nc.evalplus_equal = lambda *a: True\n"
    "def running_sum(xs): return 0",
    "patch the encoder": "import sys\nv = sys.modules['eval.code.values']\nv.encode = lambda *a: None\n"
    "v.dumps = lambda *a: b'true'\ndef running_sum(xs): return 0",
    "forge answers": 'import os\nfor _ in range(9): os.write(3, b\'{"ready":true}\\n{"s":0,"v":true}\\n\')\n'
    "def running_sum(xs): return 0",
    "read expected outputs": "import gc\ndef running_sum(xs):\n"
    "    found = [o for o in gc.get_objects() if isinstance(o, dict) and 'outputs' in o]\n"
    "    return found[0]['outputs'] if found else open('/proc/self/environ').read()",
    "search the stack": "import sys\ndef running_sum(xs):\n    frame = sys._getframe()\n"
    "    while frame.f_back: frame = frame.f_back\n"
    "    return frame.f_locals.get('expected')",
    "kill the parent": "import os, signal\ndef running_sum(xs): os.kill(os.getppid(), signal.SIGKILL)",
    "fork": "import os\ndef running_sum(xs):\n    os.fork()\n    return 0",
    "raise": "def running_sum(xs): raise BaseException()",
    "nested": "def running_sum(xs):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
}


@pytest.fixture(scope="module")
def own_humaneval(tmp_path_factory, runner):
    path = write_jsonl(tmp_path_factory.mktemp("data") / "humanevalplus.jsonl", humaneval_rows())
    tasks = [as_task(p) for p in load_problems(BENCHMARKS["humaneval_plus"], [path], check_count=False)]
    truth = GroundTruth(tmp_path_factory.mktemp("truth"), "0" * 64)
    for task in tasks:
        truth.store(task.task_id, truth.compute(runner, task))
    return tasks, truth


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_solution_never_passes(name, runner, own_humaneval):
    tasks, truth = own_humaneval
    status, _ = grade_program(runner, tasks[0], HOSTILE[name], truth[tasks[0].task_id])
    assert status in (Status.WRONG, Status.TIMEOUT)


def test_reference_solutions_pass_and_wrong_ones_fail(runner, own_humaneval):
    tasks, truth = own_humaneval
    for task in tasks:
        assert grade_program(runner, task, task.reference_program, truth[task.task_id]) == (Status.CORRECT, "")
    almost = "def half(x):\n    return x * 0.5 + 2e-6"
    assert grade_program(runner, tasks[1], almost, truth[tasks[1].task_id])[0] is Status.WRONG
    rounding = "def half(x):\n    return x * 0.5 + 1e-9"
    assert grade_program(runner, tasks[1], rounding, truth[tasks[1].task_id])[0] is Status.CORRECT
    base_only = "def running_sum(xs):\n    return [1, 3, 6] if xs else []"
    status, detail = grade_program(runner, tasks[0], base_only, truth[tasks[0].task_id])
    assert status is Status.WRONG and detail.startswith("plus input 0")


def test_ground_truth_is_kept_and_survives_a_torn_last_line(tmp_path, runner, own_humaneval):
    tasks, truth = own_humaneval
    kept = GroundTruth(tmp_path, "a" * 64)
    for task in tasks:
        kept.store(task.task_id, truth[task.task_id])
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    again = GroundTruth(tmp_path, "a" * 64)
    assert tasks[0].task_id in again and tasks[1].task_id not in again
    assert again[tasks[0].task_id] == truth[tasks[0].task_id]
    assert tasks[0].task_id not in GroundTruth(tmp_path, "b" * 64)


@needs_benchmark_data
def test_verdicts_on_mbpp_equal_those_of_evalplus_itself(runner, tmp_path):
    """Reference solutions, and the solutions of other tasks under this task's name."""
    from evalplus.eval import PASS, untrusted_check

    problems = load_problems(BENCHMARKS["mbpp_plus"], [BENCHMARK_DATA / "mbppplus.jsonl"])[:12]
    tasks = [as_task(problem) for problem in problems]
    truth = GroundTruth(tmp_path, "c" * 64)
    for task, other in zip(tasks, [*tasks[1:], tasks[0]], strict=True):
        references = truth.compute(runner, task)
        foreign = f"{other.reference_program}\n{task.entry_point} = {other.entry_point}\n"
        for program in (task.reference_program, foreign):
            ours = grade_program(runner, task, program, references)[0] is Status.CORRECT
            theirs = all(
                untrusted_check(
                    task.dataset, program, task.inputs[suite], task.entry_point, references[suite].outputs, task.atol,
                    references[suite].seconds, fast_check=True, min_time_limit=10,
                )[0] == PASS
                for suite in ("base", "plus")
            )  # fmt: skip
            assert ours == theirs, task.task_id


@needs_benchmark_data
@pytest.mark.slow
def test_mbpp_reference_solutions_grade_as_correct(tmp_path):
    """Every eighth task, or all 378 with POPULORA_CHECK_ALL_REFERENCES=1 (several minutes)."""
    problems = load_problems(BENCHMARKS["mbpp_plus"], [BENCHMARK_DATA / "mbppplus.jsonl"])
    check_all = bool(os.environ.get(CHECK_ALL))
    chosen = problems if check_all else [p for p in problems[::8] if p.problem_id not in SLOW_REFERENCES]
    truth = GroundTruth(tmp_path, "d" * 64)
    failed = []
    with CodeRunner(workers=1) as runner:
        for problem in chosen:
            task = as_task(problem)
            references = truth.compute(runner, task)
            status, detail = grade_program(runner, task, task.reference_program, references)
            if status is not Status.CORRECT:
                failed.append(f"{task.task_id}: {status} {detail}")
    assert not failed


def lcb_problems(folder: Path) -> list[Problem]:
    path = write_jsonl(folder / "livecodebench_test.jsonl", lcb_rows())
    return load_problems(BENCHMARKS["livecodebench"], [path], check_count=False)


SUM = "n = int(input())\nprint(sum(map(int, input().split())))"
ORDER = (
    "class Solution:\n    def order(self, numbers, way):\n        return tuple(sorted(numbers, reverse=way == 'down'))"
)


def test_livecodebench_programs_of_both_sorts_are_graded(tmp_path, runner):
    scripts, calls = lcb_problems(tmp_path)
    assert len(lcb_grader.tests_of(scripts)) == len(lcb_grader.tests_of(calls)) == 2
    assert lcb_grader.grade_program(runner, scripts, SUM, 20.0) == (Status.CORRECT, "")
    assert lcb_grader.grade_program(runner, calls, ORDER, 20.0) == (Status.CORRECT, "")
    public_only = "print(6)"
    assert lcb_grader.grade_program(runner, scripts, public_only, 20.0) == (Status.WRONG, "test 1: wrong output")
    upwards = "class Solution:\n    def order(self, numbers, way):\n        return sorted(numbers)"
    assert lcb_grader.grade_program(runner, calls, upwards, 20.0) == (Status.WRONG, "test 1: wrong output")
    endless = "while True: pass"
    assert lcb_grader.grade_program(runner, scripts, endless, 1.0)[0] is Status.TIMEOUT
    assert lcb_grader.grade_program(runner, calls, "def order(numbers, way): return 1", 20.0)[0] is Status.WRONG
    hostile = "class E:\n    def __eq__(self, o): return True\nclass Solution:\n    def order(self, *a): return E()"
    assert lcb_grader.grade_program(runner, calls, hostile, 20.0)[0] is Status.WRONG


def test_livecodebench_comparison_follows_upstream():
    assert lcb_stdout_equal("1 2.0\n 3 \n", "1 2\n3")
    assert not lcb_stdout_equal("1 2", "1\n2")
    assert not lcb_stdout_equal("50000000000000001", "50000000000000000")
    assert not lcb_stdout_equal("Yes", "YES")
    assert lcb_call_equal((1, 2), "[1, 2]")
    assert not lcb_call_equal([(1, 2)], "[[1, 2]]")
    assert not lcb_call_equal(0.30000000000000004, "0.3")


def test_private_tests_that_would_run_code_are_refused():
    import base64
    import pickle
    import zlib

    class Bomb:
        def __reduce__(self):
            return (os.system, ("true",))

    packed = base64.b64encode(zlib.compress(pickle.dumps(Bomb()))).decode()
    with pytest.raises(BadTests, match="refused to load"):
        decode_tests(packed)
    with pytest.raises(BadTests):
        decode_tests("not base64!")
    assert decode_tests(packed_tests([{"input": "1", "output": "2"}]))[0].output == "2"


def test_programs_are_taken_from_completions(own_humaneval):
    problem = Problem("humaneval_plus", "x", humaneval_rows()[0]["prompt"].strip(), payload=humaneval_rows()[0])
    body = "    return [sum(xs[:i + 1]) for i in range(len(xs))]\n"
    completed = program_of(problem, body, AnswerStyle.CODE_COMPLETION, Profile.FIXED)
    assert completed.count("from typing import List") == 2 and completed.endswith(body)
    rambling = body + "\n\nThis function does it."
    assert "does it" not in program_of(problem, rambling, AnswerStyle.CODE_COMPLETION, Profile.PARITY)
    fenced = "<answer>Here:\n```python\ndef running_sum(xs: List[int]): ...\n```</answer>"
    block = program_of(problem, fenced, AnswerStyle.CODE_BLOCK, Profile.FIXED)
    assert block == "from typing import List\ndef running_sum(xs: List[int]): ...\n"
    assert program_of(problem, "  \n", AnswerStyle.CODE_BLOCK, Profile.FIXED) == ""
