"""What becomes a task, and which answers solve it."""

import asyncio
import contextlib
import os
import signal

import pytest

from azr_overrides.sandbox import RunRequest, RunResult, SandboxConfig, Status
from azr_overrides.tasks.types import Answer, Candidate, Outcome, Rejection, RejectReason, Task, TaskKind, Verdict
from azr_overrides.tasks.verification import (
    VerificationConfig,
    Verifier,
    hidden_split,
    task_id,
    with_imports,
)
from tests.sandbox_support import SyncSandbox, started_sandbox

SQUARE = "def f(x):\n    return x * x"


@pytest.fixture(scope="module")
def shared():
    with started_sandbox(cpu_s=1, wall_s=4) as sandbox:
        yield sandbox


def validate(
    shared: SyncSandbox, program: str, *inputs: str, kind: TaskKind = TaskKind.CODE_O, **options
) -> Task | Rejection:
    verifier = Verifier(shared.sandbox, VerificationConfig(**options))
    return shared.wait(verifier.validate(Candidate(kind, program, inputs or ("3",)), author="teacher1", step=7))


def judge(shared: SyncSandbox, task: Task, text: str, well_formed: bool = True) -> Verdict:
    return shared.wait(Verifier(shared.sandbox).judge(task, Answer(text, well_formed)))


def test_a_good_proposal_becomes_a_task(shared: SyncSandbox):
    candidate = Candidate(TaskKind.CODE_F, SQUARE, ("2", "-3", "2.0"), ("import math",), message="squares")
    task = shared.wait(Verifier(shared.sandbox).validate(candidate, author="teacher1", step=7))
    assert task == Task(
        task_id=task_id(TaskKind.CODE_F, SQUARE, ("2", "-3", "2.0")),
        kind=TaskKind.CODE_F,
        program=SQUARE,
        inputs=("2", "-3", "2.0"),
        outputs=("4", "9", "4.0"),
        imports=("import math",),
        message="squares",
        author="teacher1",
        step=7,
    )


@pytest.mark.parametrize(
    ("program", "text", "reason"),
    [
        ("def f(x:\n    return x", "3", RejectReason.SYNTAX),
        ("(" * 500 + "1", "3", RejectReason.SYNTAX),
        ("def g(x):\n    return x", "3", RejectReason.NO_FUNCTION),
        ("import random\ndef f(x):\n    return x", "3", RejectReason.BANNED),
        ("def f(x):\n    return x", "x) or (y", RejectReason.BAD_INPUT),
        ("def f(x):\n    return x", "lambda: 1", RejectReason.BAD_INPUT),
        ("def f(x):\n    return x[5]", "[1]", RejectReason.EXCEPTION),
        ("def f(x):\n    return x", "", RejectReason.EXCEPTION),
        ("def f(x):\n    while True: pass", "3", RejectReason.TIMEOUT),
        ("def f(x):\n    return [0] * (1 << 40)", "3", RejectReason.MEMORY),
        ("def f(x):\n    return 'x' * 70_000", "3", RejectReason.OUTPUT_LIMIT),
        ("def f(x):\n    return 'x' * 5000", "3", RejectReason.TOO_LONG),
        ("def f(x):\n    return x", "'" + "y" * 5000 + "'", RejectReason.TOO_LONG),
        ("def f(x):\n    return x" + " " * 20_000, "3", RejectReason.TOO_LONG),
        ("def f(x):\n    return float('nan')", "3", RejectReason.BAD_VALUE),
        ("def f(x):\n    return [(float('nan'),)]", "3", RejectReason.BAD_VALUE),
        ("class A: pass\ndef f(x):\n    return A()", "3", RejectReason.BAD_VALUE),
        ("from collections import Counter\ndef f(x):\n    return Counter('a')", "3", RejectReason.BAD_VALUE),
        ("def f(x):\n    return ''.join({'ab', 'cd', 'ef', 'gh', 'ij'})", "3", RejectReason.NONDETERMINISTIC),
        ("def f(x):\n    return repr(object())", "3", RejectReason.NONDETERMINISTIC),
        ("c = [0]\ndef f(x):\n    c[0] += 1\n    return c[0]", "3", RejectReason.NONDETERMINISTIC),
        ("c = []\ndef f(x):\n    c.append(x)\n    return 1 // (2 - len(c))", "3", RejectReason.NONDETERMINISTIC),
        ("def f(x, seen=[]):\n    seen.append(x)\n    return list(seen)", "3", RejectReason.NONDETERMINISTIC),
        ("import os\ndef f(x):\n    os.kill(1, 9)", "3", RejectReason.POLICY),
        ("import os\ndef f(x):\n    os._exit(0)", "3", RejectReason.CRASH),
        ("import os\ndef f(x):\n    os.write(3, b'x' * 20)\n    return 1", "3", RejectReason.CRASH),
    ],
)
def test_every_fault_has_its_reason(shared: SyncSandbox, program, text, reason):
    rejection = validate(shared, program, text)
    assert isinstance(rejection, Rejection)
    assert rejection.reason is reason
    assert rejection.detail and "\n" not in rejection.detail


@pytest.mark.parametrize(
    "program",
    [
        "def f(x):\n    return {'b', 'a', 'c'}",
        "def f(x):\n    return dict.fromkeys({'b', 'a', 'c'})",  # another order in each interpreter, but equal
        "def f(x):\n    return sorted({'b', 'a', 'c'})",
        "def f(id):\n    hash = id + 1\n    return hash",
        "def f(x):\n    x += 1\n    print(x)\n    return x",
        "def f(x):\n    return -0.0, True, None, b'', 1j, frozenset(), ((),)",
        "def user_input(x):\n    return x\ndef f(x):\n    return user_input(x)",
        "import datetime\ndef f(x):\n    return datetime.date(2020, 1, x).isoformat()",
    ],
)
def test_deterministic_programs_pass(shared: SyncSandbox, program):
    assert isinstance(validate(shared, program, "3", banned_words=()), Task)


def test_an_input_may_be_changed_by_the_program(shared: SyncSandbox):
    task = validate(shared, "def f(x):\n    x.append(len(x))\n    return x", "[1]", "[2]", kind=TaskKind.CODE_F)
    assert isinstance(task, Task) and task.outputs == ("[1, 1]", "[2, 1]")


def test_multi_line_inputs_work(shared: SyncSandbox):
    task = validate(shared, "def f(x):\n    return x", '"""a\nb"""')
    assert isinstance(task, Task) and task.outputs == ("'a\\nb'",)


def test_one_bad_input_of_many_is_enough(shared: SyncSandbox):
    rejection = validate(shared, "def f(x):\n    return 1 // x", "1", "0", kind=TaskKind.CODE_F)
    assert isinstance(rejection, Rejection) and rejection.reason is RejectReason.EXCEPTION


@pytest.mark.parametrize(
    ("program", "output"),
    [
        ("def f(x):\n    return x", "NoError"),
        ("def f(x):\n    return object()", None),
        ("def f(x):\n    return int('x')", "ValueError"),
        ("class MyError(Exception): pass\ndef f(x):\n    raise MyError('v')", "MyError"),
        ("import json\ndef f(x):\n    return json.loads('{')", "JSONDecodeError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("def f(x):\n    while True: pass", None),
    ],
)
def test_error_tasks_state_the_name_of_the_exception(shared: SyncSandbox, program, output):
    task = validate(shared, program, kind=TaskKind.CODE_E)
    assert (task.outputs[0] if isinstance(task, Task) else None) == output


def test_banned_keywords_apply_to_error_tasks_only(shared: SyncSandbox):
    program = "def f(x):\n    if x > 5:\n        raise ValueError(x)\n    return x"
    rejection = validate(shared, program, kind=TaskKind.CODE_E, banned_keywords=("raise",))
    assert isinstance(rejection, Rejection) and rejection.reason is RejectReason.BANNED
    assert isinstance(validate(shared, program, banned_keywords=("raise",)), Task)


def make_task(kind: TaskKind, program: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **more) -> Task:
    return Task("id", kind, program, inputs, outputs, **more)


@pytest.mark.parametrize(
    ("output", "answer", "correct"),
    [
        ("5", "5.0", True),
        ("5", "2+3", False),
        ("'a'", '"a"', True),
        ("'a'", "a", False),
        ("'1'", "'1.0'", False),
        ("(1, 2)", "1, 2", True),
        ("[1, 2]", "(1, 2)", False),
        ("{1, 2}", "{2, 1}", True),
        ("None", "", False),
        ("[7, 8]", "eval(gold_output)", False),
        ("5", "```5```", False),
        ("5", "5\n", True),
        ("5", "9" * 5000, False),
        ("True", "1", True),
    ],
)
def test_an_output_answer_is_one_literal_of_equal_value(shared: SyncSandbox, output, answer, correct):
    verdict = judge(shared, make_task(TaskKind.CODE_O, SQUARE, ("3",), (output,)), answer)
    assert verdict.outcome is (Outcome.CORRECT if correct else Outcome.WRONG)
    assert verdict.accuracy == float(correct)


@pytest.mark.parametrize(
    ("program", "output", "answer", "correct"),
    [
        (SQUARE, "9", "-3", True),
        (SQUARE, "9.0", "3", True),
        (SQUARE, "9", "x=3", True),
        (SQUARE, "9", "int('3')", True),
        (SQUARE, "9", "[9,\n3][1]", True),
        (SQUARE, "9", "2", False),
        (SQUARE, "9", "", False),
        (SQUARE, "9", "0) or (True", False),
        (SQUARE, "9", "(", False),
        ("def f(x):\n    return x", "nan", "float('nan')", False),
        ("def f(x):\n    return x", "[1, 2]", "(1, 2)", False),
        ("class T:\n    def __eq__(s, o): return True\ndef f(x):\n    return T()", "5", "1", False),
    ],
)
def test_any_input_with_the_right_output_solves_abduction(shared: SyncSandbox, program, output, answer, correct):
    verdict = judge(shared, make_task(TaskKind.CODE_I, program, ("3",), (output,)), answer)
    assert verdict.outcome is (Outcome.CORRECT if correct else Outcome.WRONG)


def test_a_program_is_judged_on_the_hidden_pairs_alone(shared: SyncSandbox):
    task = make_task(TaskKind.CODE_F, SQUARE, ("1", "2", "3", "4", "5"), ("1", "4", "9", "16", "25"))
    assert hidden_split(5) == 2
    assert judge(shared, task, SQUARE) == Verdict(Outcome.CORRECT, 1.0)
    shown_only = judge(shared, task, "def f(x):\n    return {1: 1, 2: 4}[x]")
    assert (shown_only.outcome, shown_only.accuracy) == (Outcome.WRONG, 0.0)
    partly = judge(shared, task, "def f(x):\n    return 9 if x == 3 else 16")
    assert (partly.outcome, round(partly.accuracy, 3)) == (Outcome.WRONG, 0.667)


def test_a_program_answer_gets_the_task_s_imports(shared: SyncSandbox):
    task = make_task(TaskKind.CODE_F, "", ("4", "9"), ("2.0", "3.0"), imports=("from math import sqrt",))
    assert judge(shared, task, "def f(x):\n    return sqrt(x)").outcome is Outcome.CORRECT


def test_expected_outputs_never_enter_a_child(shared: SyncSandbox, monkeypatch):
    seen: list[RunRequest] = []
    original = shared.sandbox.run

    async def recording(request: RunRequest) -> tuple[RunResult, ...]:
        seen.append(request)
        return await original(request)

    monkeypatch.setattr(shared.sandbox, "run", recording)
    secret = "'expected-output-of-the-task'"
    for kind in (TaskKind.CODE_I, TaskKind.CODE_F, TaskKind.CODE_O, TaskKind.CODE_E):
        pairs = 2 if kind is TaskKind.CODE_F else 1
        judge(shared, make_task(kind, SQUARE, ("1",) * pairs, (secret,) * pairs), "3")
    assert len(seen) == 2
    assert not any(secret in str(request) for request in seen)


@pytest.mark.parametrize(
    ("answer", "correct"),
    [
        ("ValueError", True),
        ("valueerror", True),
        ("ValueError: invalid literal", True),
        ("  ValueError raised", True),
        ("KeyError", False),
        ("", False),
        ("NoError", False),
    ],
)
def test_an_error_answer_is_a_name(shared: SyncSandbox, answer, correct):
    verdict = judge(shared, make_task(TaskKind.CODE_E, SQUARE, ("'a'",), ("ValueError",)), answer)
    assert (verdict.outcome is Outcome.CORRECT) is correct


def test_a_malformed_answer_is_not_run(shared: SyncSandbox):
    shared.sandbox.metrics(reset=True)
    task = make_task(TaskKind.CODE_I, SQUARE, ("3",), ("9",))
    assert judge(shared, task, "3", well_formed=False).outcome is Outcome.MALFORMED
    assert shared.sandbox.metrics()["programs"] == 0


def test_failures_of_the_infrastructure_are_not_charged(monkeypatch):
    with started_sandbox() as sandbox:

        async def lost(request: RunRequest) -> tuple[RunResult, ...]:
            return tuple(RunResult(Status.WORKER_LOST) for _ in request.inputs)

        monkeypatch.setattr(sandbox.sandbox, "run", lost)
        rejection = validate(sandbox, SQUARE)
        assert isinstance(rejection, Rejection) and rejection.reason is RejectReason.UNVERIFIED
        task = make_task(TaskKind.CODE_F, SQUARE, ("1", "2"), ("1", "4"))
        assert judge(sandbox, task, SQUARE) == Verdict(Outcome.UNJUDGED, detail="worker_lost")


def test_killing_templates_all_the_time_makes_no_verdict_wrong():
    with started_sandbox(slots=4) as sandbox:
        verifier = Verifier(sandbox.sandbox)
        right = [make_task(TaskKind.CODE_I, f"def f(x):\n    return x + {i}", ("0",), (str(i + 5),)) for i in range(60)]

        async def scenario() -> list[Verdict]:
            calls = [asyncio.create_task(verifier.judge(task, Answer("5", True))) for task in right]
            calls += [asyncio.create_task(verifier.judge(task, Answer("6", True))) for task in right]
            for _ in range(3):
                await asyncio.sleep(0.1)
                if (pid := sandbox.sandbox._workers[0].pid) > 0:  # 0: the next one has not been started yet
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            return await asyncio.gather(*calls)

        verdicts = sandbox.wait(asyncio.wait_for(scenario(), 120))
        assert {v.outcome for v in verdicts[:60]} <= {Outcome.CORRECT, Outcome.UNJUDGED}
        assert {v.outcome for v in verdicts[60:]} <= {Outcome.WRONG, Outcome.UNJUDGED}
        assert sum(v.outcome is Outcome.UNJUDGED for v in verdicts) < 30


def test_task_ids_ignore_formatting_comments_and_docstrings():
    plain = task_id(TaskKind.CODE_O, "def f(x):\n    return x+1", ("[1,2]",))
    assert plain == task_id(TaskKind.CODE_O, 'def f(x):\n    """doc"""\n    return (x + 1)  # comment\n', ("[1, 2]",))
    others = [
        task_id(TaskKind.CODE_I, "def f(x):\n    return x+1", ("[1,2]",)),
        task_id(TaskKind.CODE_O, "def f(y):\n    return y+1", ("[1,2]",)),
        task_id(TaskKind.CODE_O, "def f(x):\n    return x+1", ("[2,1]",)),
        task_id(TaskKind.CODE_O, "def f(x):\n    return x+1", ("[1,2]", "3")),
        task_id(TaskKind.CODE_O, "def f(x:\n", ("(",)),
    ]
    assert len({plain, *others}) == 6


def test_imports_are_prepended_once():
    assert with_imports(("import math", "import re"), "import re\nx = 1") == "import math\nimport re\nx = 1"


def test_bad_verification_settings_are_refused():
    with pytest.raises(ValueError, match="positive"):
        VerificationConfig(max_value_chars=0)
    with pytest.raises(ValueError, match="while"):
        VerificationConfig(banned_keywords=("while",))


def test_the_default_limits_leave_room_for_a_second_run():
    assert SandboxConfig().wall_s >= SandboxConfig().cpu_s
