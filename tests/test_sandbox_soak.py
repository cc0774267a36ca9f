"""Two thousand mixed programs, good and bad, side by side: every verdict right, nothing left behind."""

import asyncio
import os
import tempfile
from pathlib import Path

import pytest

from azr_overrides.sandbox import RunRequest, Sandbox, SandboxConfig, Status
from tests.sandbox_attack_harness import descendants
from tests.sandbox_support import open_descriptors

PROGRAMS = 2000


def mixed_request(index: int) -> tuple[RunRequest, list[tuple[Status, str]]]:
    """A program and what must come of it."""
    kinds = [
        (f"def f(x):\n    return x + {index}", ("1", "2"), [(Status.OK, str(index + 1)), (Status.OK, str(index + 2))]),
        (
            f"from collections import Counter\ndef f(s):\n    return dict(Counter(s)), {index}",
            ("'aab'",),
            [(Status.OK, f"({{'a': 2, 'b': 1}}, {index})")],
        ),
        ("def f(x):\n    return sorted({x * i % 7 for i in range(9)})", ("3",), [(Status.OK, "[0, 1, 2, 3, 4, 5, 6]")]),
        ("def f(x):\n    raise KeyError(x)", ("1",), [(Status.EXCEPTION, "")]),
        ("def f(x):\n    return object()", ("1",), [(Status.BAD_VALUE, "")]),
        ("import os\ndef f(x):\n    os._exit(0)", ("1", "2"), [(Status.CRASH, "")] * 2),
        ("import os\ndef f(x):\n    os.kill(os.getppid(), 9)", ("1",), [(Status.POLICY, "")]),
        ("import os\ndef f(x):\n    os.write(3, b'!' * 99)\n    return x", ("1",), [(Status.PROTOCOL, "")]),
        ("def f(x):\n    return x", ("0) or (True", "5"), [(Status.BAD_INPUT, ""), (Status.OK, "5")]),
        ("def f(x):\n    return [0] * (1 << 30)", ("1",), [(Status.MEMORY, "")]),
        ("def f(x):\n    return 'z' * 100_000", ("1",), [(Status.OUTPUT_LIMIT, "")]),
    ]
    spin = "def f(x):\n    while True: pass"
    program, inputs, expected = kinds[index % len(kinds)] if index % 500 else (spin, ("1",), [(Status.CPU_LIMIT, "")])
    return RunRequest(program, inputs, interpreter=(None, 0, 1)[index % 3]), expected


def temporary_files() -> set[str]:
    return {path.name for path in Path(tempfile.gettempdir()).glob("sandbox-*")}


@pytest.mark.slow
def test_two_thousand_mixed_programs():
    descriptors, processes, files = open_descriptors(), descendants(os.getpid()), temporary_files()

    async def scenario() -> dict[str, float]:
        async with Sandbox(SandboxConfig(slots=6, cpu_s=1, wall_s=30, memory_mb=256)) as sandbox:
            if sandbox.isolation.layers["seccomp"].startswith("off"):
                pytest.skip("without seccomp some of these programs end otherwise")
            resident = descendants(os.getpid())
            cases = [mixed_request(index) for index in range(PROGRAMS)]
            answers = await asyncio.gather(*(sandbox.run(request) for request, _ in cases))
            for (request, expected), results in zip(cases, answers, strict=True):
                assert [(result.status, result.value) for result in results] == expected, request
            assert descendants(os.getpid()) == resident
            return sandbox.metrics()

    metrics = asyncio.run(scenario())
    assert metrics["programs"] == PROGRAMS
    assert metrics["respawns"] == metrics["worker_lost"] == 0
    assert open_descriptors() == descriptors
    assert descendants(os.getpid()) == processes
    assert temporary_files() == files
