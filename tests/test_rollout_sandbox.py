"""The sandbox of a rollout worker that has given up is replaced, with what the worker knows."""

import asyncio
import os
import signal

import pytest

pytest.importorskip("verl")

from azr_overrides.agent_loop import _shared  # noqa: E402
from azr_overrides.config import compose  # noqa: E402
from azr_overrides.sandbox import RunRequest, SandboxError  # noqa: E402
from azr_overrides.tasks.types import Task, TaskKind  # noqa: E402

REQUEST = RunRequest("def f(x):\n    return x + 1", ("1",))
TASK = Task("t1", TaskKind.CODE_O, "def f(x):\n    return x", ("1",), ("1",))


async def give_up(sandbox):
    """Kill every template as soon as it lives, until the sandbox stops replacing them."""
    while sandbox.failure is None:
        for worker in sandbox._workers:
            if worker.ready:
                os.kill(worker.pid, signal.SIGKILL)
        await asyncio.sleep(0.02)


def test_a_sandbox_that_gave_up_is_replaced(monkeypatch):
    config = compose(["population=1t1s"])

    async def scenario():
        process = await _shared(config)
        process.remember([TASK])
        lost = process.sandbox
        await asyncio.wait_for(give_up(lost), 120)
        with pytest.raises(SandboxError, match="keep failing"):
            await lost.run(REQUEST)
        same = await _shared(config)
        (result,) = await same.sandbox.run(REQUEST)
        assert same is process and same.sandbox is not lost
        assert (result.value, same.restarts, same.known) == ("2", 1, {"t1"})
        assert same.rules.verifier._sandbox is same.sandbox
        await same.sandbox.close()

    monkeypatch.setattr("azr_overrides.agent_loop._process", None)
    asyncio.run(scenario())
