"""What the sandbox tests share."""

import asyncio
import os
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from azr_overrides.sandbox import RunRequest, RunResult, Sandbox, SandboxConfig


class SyncSandbox:
    """A started sandbox with its own event loop, for tests that are plain functions."""

    def __init__(self, runner: asyncio.Runner, sandbox: Sandbox) -> None:
        self._runner = runner
        self.sandbox = sandbox

    def run(self, program: str, *inputs: str, **options: Any) -> tuple[RunResult, ...]:
        return self.wait(self.sandbox.run(RunRequest(program, inputs, **options)))

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list:
        async def all_of_them() -> list:
            return await asyncio.gather(*coroutines)

        return self.wait(all_of_them())


@contextmanager
def started_sandbox(**options: Any) -> Iterator[SyncSandbox]:
    defaults: dict[str, Any] = {"cpu_s": 2, "wall_s": 4, "memory_mb": 256}
    with asyncio.Runner() as runner:
        sandbox = Sandbox(SandboxConfig(**{**defaults, **options}))
        runner.run(sandbox.start())
        try:
            yield SyncSandbox(runner, sandbox)
        finally:
            runner.run(sandbox.close())


def open_descriptors() -> set[str]:
    """What the descriptors of this process point to."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{entry.name}:{os.readlink(entry)}")
        except FileNotFoundError:
            continue
    return found
