"""The sandbox from outside: outcomes, limits, order, and what happens when a process is killed."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from azr_overrides.sandbox import (
    IsolationTooWeak,
    RunRequest,
    Sandbox,
    SandboxConfig,
    SandboxError,
    Status,
)
from azr_overrides.sandbox import executor as executor_module
from tests.sandbox_attack_harness import descendants
from tests.sandbox_support import SyncSandbox, open_descriptors, started_sandbox

SLEEPLESS_LOOP = "def f(x):\n    while True: pass"
WAITING = "import threading\ndef f(x):\n    lock = threading.Lock(); lock.acquire(); lock.acquire()"


@pytest.fixture(scope="module")
def shared():
    with started_sandbox(cpu_s=1, wall_s=2) as sandbox:
        yield sandbox


def wait_until(condition, seconds: float = 30.0) -> bool:
    """Poll; generous, since the machine may be busy. Returns whether the condition came true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize(
    ("program", "text", "status"),
    [
        ("def f(x):\n    return x + 1", "41", Status.OK),
        ("def f(x):\n    return x / 0", "1", Status.EXCEPTION),
        ("def g(x):\n    return x", "1", Status.EXCEPTION),
        ("def f(x:\n    return x", "1", Status.EXCEPTION),
        ("import sys\ndef f(x):\n    sys.exit(0)", "1", Status.EXCEPTION),
        ("def f(x):\n    return x", "0) or (True", Status.BAD_INPUT),
        ("def f(x):\n    return object()", "1", Status.BAD_VALUE),
        ("def f(x):\n    return 10 ** 6000", "1", Status.BAD_VALUE),
        ("def f(x):\n    return 'x' * 70_000", "1", Status.OUTPUT_LIMIT),
        ("def f(x):\n    return 'x' * (60 << 20)", "1", Status.OUTPUT_LIMIT),
        ("def f(x):\n    return bytearray(1 << 30)", "1", Status.MEMORY),
        (SLEEPLESS_LOOP, "1", Status.CPU_LIMIT),
        ("import signal\nsignal.signal(signal.SIGXCPU, signal.SIG_IGN)\n" + SLEEPLESS_LOOP, "1", Status.CPU_LIMIT),
        (WAITING, "1", Status.TIMEOUT),
        ("import os\ndef f(x):\n    os.fork()", "1", Status.POLICY),
        ("import os\ndef f(x):\n    os._exit(0)", "1", Status.CRASH),
        ("import ctypes\ndef f(x):\n    ctypes.string_at(1)", "1", Status.CRASH),
        ("import os\ndef f(x):\n    os.write(3, b'garbage' * 10); os._exit(0)", "1", Status.PROTOCOL),
    ],
)
def test_every_way_to_end_has_its_status(shared: SyncSandbox, program, text, status):
    (result,) = shared.run(program, text)
    assert result.status is status
    assert result.retries == 0


def test_results_carry_value_error_and_usage(shared: SyncSandbox):
    good, bad = shared.run("def f(x, y=2):\n    return {x: [y, None]}", "'a'", "[]")
    assert (good.value, bad.error_type) == ("{'a': [2, None]}", "TypeError")
    assert "unhashable" in bad.message
    assert good.cpu_s > 0 and good.wall_s > 0 and good.max_rss_kb > 1000


def test_one_bad_call_does_not_spoil_the_others(shared: SyncSandbox):
    results = shared.run("def f(x):\n    return 10 // x", "5", "0", "0) or (1", "2")
    assert [result.status for result in results] == [
        Status.OK,
        Status.EXCEPTION,
        Status.BAD_INPUT,
        Status.OK,
    ]
    assert (results[0].value, results[3].value) == ("2", "5")


def test_calls_before_a_crash_keep_their_answers(shared: SyncSandbox):
    program = "import os\ndef f(x):\n    if x == 2:\n        os._exit(0)\n    return x"
    assert [r.status for r in shared.run(program, "1", "2", "3")] == [Status.OK, Status.CRASH, Status.CRASH]


def test_forged_frames_cost_the_whole_answer(shared: SyncSandbox):
    forger = "import os, struct\ndef f(x):\n    os.write(3, struct.pack('!BHI', 1, 0, 1) + b'9')\n    return 9"
    assert {result.status for result in shared.run(forger, "1", "2")} == {Status.PROTOCOL}


def test_a_program_can_import_the_standard_library_but_not_this_one(shared: SyncSandbox):
    (late,) = shared.run("import fractions, json\ndef f(x):\n    return str(fractions.Fraction(x, 6))", "3")
    assert late.value == "'1/2'"
    for module in ("azr_overrides", "pytest", "template"):
        (result,) = shared.run(f"import {module}\ndef f(x):\n    return 1", "3")
        assert result.error_type == "ModuleNotFoundError"


def test_nothing_of_one_program_reaches_the_next(shared: SyncSandbox):
    shared.run("import math, builtins\nmath.pi = 3\nbuiltins.len = lambda x: 0\ndef f(x):\n    return 1", "1")
    (result,) = shared.run("import math\ndef f(x):\n    return math.pi > 3.1, len(x)", "[1]")
    assert result.value == "(True, 1)"


def test_two_interpreters_order_sets_differently(shared: SyncSandbox):
    program = "def f(n):\n    return list({str(i) for i in range(n)})"
    first, second = (shared.run(program, "30", interpreter=index)[0].value for index in (0, 1))
    assert first != second
    assert first == shared.run(program, "30", interpreter=0)[0].value


def test_results_come_back_to_their_requests(shared: SyncSandbox):
    requests = [RunRequest(f"def f(x):\n    return x * {i}", ("2", "3")) for i in range(60)]
    answers = shared.gather(*(shared.sandbox.run(request) for request in requests))
    assert [[result.value for result in results] for results in answers] == [
        [str(2 * i), str(3 * i)] for i in range(60)
    ]


def test_large_requests_and_answers_pass(shared: SyncSandbox):
    text = "[" + ", ".join(map(str, range(100_000))) + "]"
    (result,) = shared.run("def f(x):\n    return sum(x), 'y' * 60_000", text)
    assert result.value.startswith("(4999950000, 'yyy")


def test_no_inputs_no_results(shared: SyncSandbox):
    assert shared.run("def f():\n    return 1") == ()


def test_limits_of_a_request_replace_those_of_the_sandbox(shared: SyncSandbox):
    (result,) = shared.run("def f(x):\n    return bytes(100 << 20)[:1]", "1", memory_mb=64)
    assert result.status is Status.MEMORY
    (result,) = shared.run("def f(x):\n    return len(bytes(100 << 20))", "1")
    assert result.status is Status.OK


def test_metrics_count_and_reset(shared: SyncSandbox):
    shared.sandbox.metrics(reset=True)
    shared.run("def f(x):\n    return 1 // x", "1", "0")
    metrics = shared.sandbox.metrics()
    assert (metrics["programs"], metrics["ok"], metrics["exception"], metrics["timeout"]) == (1, 1, 1, 0)
    assert metrics["p99_ms"] >= metrics["p50_ms"] > 0 and metrics["programs_per_s"] > 0
    shared.sandbox.metrics(reset=True)
    assert shared.sandbox.metrics()["programs"] == 0


def test_cancelling_a_call_kills_its_child(shared: SyncSandbox):
    async def scenario() -> None:
        call = asyncio.create_task(shared.sandbox.run(RunRequest(WAITING, ("1",), wall_s=300)))
        while not any(worker.jobs for worker in shared.sandbox._workers):
            await asyncio.sleep(0.01)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        while any(worker.jobs for worker in shared.sandbox._workers):
            await asyncio.sleep(0.01)

    shared.wait(asyncio.wait_for(scenario(), 60))


def test_children_are_never_more_than_slots():
    with started_sandbox(slots=3) as sandbox:
        templates = len(descendants(os.getpid()))

        async def scenario() -> int:
            burn = RunRequest("def f(x):\n    return sum(range(600_000))", ("1",))
            calls = asyncio.gather(*(sandbox.sandbox.run(burn) for _ in range(24)))
            most = 0
            while not calls.done():
                most = max(most, len(descendants(os.getpid())) - templates)
                await asyncio.sleep(0.005)
            assert all(result.status is Status.OK for (result,) in await calls)
            return most

        assert 1 <= sandbox.wait(scenario()) <= 3


def test_a_killed_child_is_retried_and_not_charged():
    with started_sandbox(slots=2) as sandbox:
        resident = descendants(os.getpid())

        async def scenario() -> list:
            call = asyncio.create_task(sandbox.sandbox.run(RunRequest(WAITING, ("1",), wall_s=30)))
            for _ in range(2):
                while not (children := descendants(os.getpid()) - resident):
                    await asyncio.sleep(0.01)
                for child in children:
                    os.kill(child, signal.SIGKILL)
                while descendants(os.getpid()) & children:
                    await asyncio.sleep(0.01)
            return list(await call)

        (result,) = sandbox.wait(asyncio.wait_for(scenario(), 60))
        assert (result.status, result.retries) == (Status.WORKER_LOST, 1)
        assert result.status.is_infrastructure
        assert sandbox.run("def f(x):\n    return x", "1")[0].status is Status.OK


def test_a_killed_template_is_replaced_and_its_work_done_again():
    with started_sandbox() as sandbox:

        async def scenario() -> list:
            requests = [RunRequest(f"def f(x):\n    return sum(range(30_000)) + {i}", ("1",)) for i in range(60)]
            calls = [asyncio.create_task(sandbox.sandbox.run(request)) for request in requests]
            while not any(call.done() for call in calls):
                await asyncio.sleep(0.005)
            os.kill(sandbox.sandbox._workers[0].pid, signal.SIGKILL)
            return await asyncio.gather(*calls)

        answers = sandbox.wait(asyncio.wait_for(scenario(), 120))
        base = sum(range(30_000))
        assert [results[0].value for results in answers] == [str(base + i) for i in range(60)]
        assert wait_until(lambda: sandbox.wait(_metric(sandbox, "respawns")) == 1)
        assert sandbox.run("def f(x):\n    return x", "1", interpreter=0)[0].status is Status.OK


async def _metric(sandbox: SyncSandbox, name: str) -> float:
    await asyncio.sleep(0.01)
    return sandbox.sandbox.metrics()[name]


def test_a_stopped_template_is_noticed(monkeypatch):
    monkeypatch.setattr(executor_module, "_HUNG_AFTER_S", 0.5)
    with started_sandbox(wall_s=0.2) as sandbox:
        os.kill(sandbox.sandbox._workers[0].pid, signal.SIGSTOP)
        (result,) = sandbox.run("def f(x):\n    return x", "7", interpreter=0)
        assert (result.value, result.retries) == ("7", 1)


def test_templates_that_keep_dying_make_the_sandbox_fail_loudly():
    with started_sandbox() as sandbox:

        async def scenario() -> None:
            for _ in range(executor_module.MAX_CONSECUTIVE_LOSSES):
                worker = sandbox.sandbox._workers[0]
                while not worker.ready:
                    worker = sandbox.sandbox._workers[0]
                    await asyncio.sleep(0.01)
                os.kill(worker.pid, signal.SIGKILL)
                while sandbox.sandbox._workers[0] is worker and not sandbox.sandbox._failure:
                    await asyncio.sleep(0.01)
            while not sandbox.sandbox._failure:
                await asyncio.sleep(0.01)
            with pytest.raises(SandboxError, match="keep failing"):
                await sandbox.sandbox.run(RunRequest("def f(x):\n    return x", ("1",)))

        sandbox.wait(asyncio.wait_for(scenario(), 120))


def test_closing_cancels_what_is_left_and_leaves_nothing():
    descriptors = open_descriptors()
    processes = descendants(os.getpid())

    async def scenario() -> list:
        sandbox = Sandbox(SandboxConfig(slots=2))
        await sandbox.start()
        calls = [asyncio.create_task(sandbox.run(RunRequest(WAITING, ("1",)))) for _ in range(5)]
        await asyncio.sleep(0.2)
        await sandbox.close()
        await sandbox.close()
        with pytest.raises(SandboxError, match="not open"):
            await sandbox.run(RunRequest("def f(x):\n    return x", ("1",)))
        return await asyncio.gather(*calls)

    answers = asyncio.run(scenario())
    assert [results[0].status for results in answers] == [Status.CANCELLED] * 5
    assert open_descriptors() == descriptors
    assert descendants(os.getpid()) == processes


def test_nothing_survives_a_killed_trainer():
    script = """
import asyncio, sys
from azr_overrides.sandbox import *
async def main():
    sandbox = Sandbox(SandboxConfig())
    await sandbox.start()
    loop = "def f(x):\\n    while True: pass"
    calls = [asyncio.create_task(sandbox.run(RunRequest(loop, ("1",), cpu_s=300, wall_s=300))) for _ in range(4)]
    await asyncio.sleep(0.3)
    print(sandbox.isolation.level.value, flush=True)
    await asyncio.gather(*calls)
asyncio.run(main())
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert trainer.stdout is not None
    assert trainer.stdout.readline().strip()
    family = descendants(trainer.pid)
    assert len(family) >= 2 + 4
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert wait_until(lambda: not any(_is_alive(pid) for pid in family))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_too_little_isolation_is_refused_with_advice():
    async def scenario() -> None:
        await Sandbox(SandboxConfig(layers=(), min_isolation="seccomp")).start()

    processes = descendants(os.getpid())
    with pytest.raises(IsolationTooWeak, match=r"azr\.sandbox\.min_isolation=rlimits"):
        asyncio.run(scenario())
    assert descendants(os.getpid()) == processes


def test_the_report_is_plain_data(shared: SyncSandbox):
    report = shared.sandbox.isolation.as_dict()
    assert set(report) == {"level", "layers", "findings"}
    assert all(isinstance(value, str) for part in ("layers", "findings") for value in report[part].values())
    assert report["level"] in shared.sandbox.isolation.summary()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"workers": 1}, "workers"),
        ({"slots": 1}, "slots"),
        ({"cpu_s": 0}, "cpu_s"),
        ({"memory_mb": -1}, "memory_mb"),
        ({"min_isolation": "strong"}, "full"),
        ({"layers": ("seccomp", "magic")}, "magic"),
        ({"seccomp_backend": "other"}, "builtin"),
    ],
)
def test_bad_configuration_is_refused(options, complaint):
    with pytest.raises(ValueError, match=complaint):
        SandboxConfig(**options)


def test_a_bad_interpreter_number_is_refused():
    with pytest.raises(ValueError, match="interpreter"):
        RunRequest("", ("1",), interpreter=2)


def test_a_missing_module_to_preload_is_named():
    async def scenario() -> None:
        await Sandbox(SandboxConfig(preload=("no_such_module",))).start()

    with pytest.raises(SandboxError, match="no_such_module"):
        asyncio.run(scenario())


def test_third_party_packages_are_an_option():
    pytest.importorskip("numpy")
    program = "import numpy\ndef f(x):\n    return int(numpy.arange(x).sum())"
    with started_sandbox(site_packages=True, preload=("numpy",), memory_mb=2048) as sandbox:
        assert sandbox.run(program, "5")[0].value == "10"
