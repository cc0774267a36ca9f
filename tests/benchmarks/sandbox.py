"""Throughput of the sandbox, as ratios to an unisolated process pool and to a fresh interpreter for each
program.

    python -m tests.benchmarks.sandbox [--programs 600] [--rounds 5]

All are measured in turn, round by round in one run, so that a busy machine slows all of them; a ratio is the
median over the rounds. ``*_vs_pool``: calls a second over those of a warm pebble pool with as many workers as
there are templates, to which programs are handed by ``map``. ``trainer_cpu_ms``: CPU time of this process for
each program, with every layer of isolation on.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from statistics import median

from pebble import ProcessPool

from azr_overrides.sandbox import RunRequest, Sandbox, SandboxConfig, Status

WORKERS = 2
PROGRAMS = (
    "def f(a, b):\n    return [x * b for x in a if x % 2 == 0]\n",
    "def f(a, b):\n    total = 0\n    for i, x in enumerate(a):\n        total += (i + b) * x\n    return total\n",
    "import math\ndef f(a, b):\n    return {x: math.gcd(x, b) for x in a}\n",
    "from collections import deque\ndef f(a, b):\n    d = deque(a)\n    d.rotate(b)\n    return list(d)\n",
    "def f(a, b):\n    def g(n):\n        return n if n < 2 else g(n - 1) + g(n - 2)\n"
    "    return [g(x % 8) + b for x in a]\n",
)


def cases(count: int) -> list[tuple[str, str]]:
    """Small distinct programs with one input each."""
    return [
        (f"{PROGRAMS[i % len(PROGRAMS)]}# {i}\n", f"[{i}, {i + 1}, {i * 7 % 13}, 4, 10], {i % 5 + 1}")
        for i in range(count)
    ]


def run_unconfined(case: tuple[str, str]) -> str:
    """What a pool without isolation does for one program."""
    program, text = case
    namespace: dict = {}
    exec(program, namespace)
    return repr(eval(f"f({text})", namespace))


def pool_rate(pool: ProcessPool, work: list[tuple[str, str]]) -> float:
    started = time.perf_counter()
    answers = list(pool.map(run_unconfined, work).result())
    elapsed = time.perf_counter() - started
    assert answers[0] == run_unconfined(work[0])
    return len(work) / elapsed


def fresh_rate(work: list[tuple[str, str]]) -> float:
    """One isolated-mode interpreter for each program, ``WORKERS`` at a time."""
    started = time.perf_counter()
    running: list[subprocess.Popen] = []
    for program, text in work:
        running.append(
            subprocess.Popen(
                [sys.executable, "-I", "-c", f"{program}\nprint(repr(f({text})))"], stdout=subprocess.DEVNULL
            )
        )
        if len(running) == WORKERS:
            running.pop(0).wait()
    for process in running:
        process.wait()
    return len(work) / (time.perf_counter() - started)


async def sandbox_rate(sandbox: Sandbox, requests: list[RunRequest]) -> tuple[float, float]:
    """Calls a second, and CPU milliseconds of this process for each program."""
    started, cpu = time.perf_counter(), time.process_time()
    answers = await asyncio.gather(*(sandbox.run(request) for request in requests))
    elapsed, cpu = time.perf_counter() - started, time.process_time() - cpu
    calls = sum(map(len, answers))
    assert all(result.status is Status.OK for results in answers for result in results)
    return calls / elapsed, 1000 * cpu / len(requests)


async def measure(programs: int, rounds: int) -> dict:
    work = cases(programs)
    single = [RunRequest(program, (text,)) for program, text in work]
    batched = [RunRequest(program, tuple(text for _, text in work[:8])) for program, _ in work[: programs // 4]]
    samples: dict[str, list[float]] = {}
    rates: dict[str, list[float]] = {}
    with ProcessPool(max_workers=WORKERS) as pool:
        pool_rate(pool, work)  # warm
        async with Sandbox(SandboxConfig(workers=WORKERS, slots=8 * WORKERS)) as sandbox:
            await sandbox_rate(sandbox, single[:50])
            for _ in range(rounds):
                pooled = await asyncio.to_thread(pool_rate, pool, work * 4)
                alone, cpu_ms = await sandbox_rate(sandbox, single)
                eight, _ = await sandbox_rate(sandbox, batched)
                fresh = await asyncio.to_thread(fresh_rate, work[: max(20, programs // 10)])
                for name, rate in {"pool": pooled, "single": alone, "k8": eight, "fresh": fresh}.items():
                    rates.setdefault(name, []).append(rate)
                for name, value in {
                    "single_vs_pool": alone / pooled,
                    "k8_vs_pool": eight / pooled,
                    "single_vs_fresh": alone / fresh,
                    "trainer_cpu_ms": cpu_ms,
                }.items():
                    samples.setdefault(name, []).append(value)
            level = sandbox.isolation.level.value
    return {
        **{name: round(median(values), 4) for name, values in samples.items()},
        "isolation": level,
        "calls_per_s": {name: round(median(values), 1) for name, values in rates.items()},
        "programs": programs,
        "rounds": rounds,
        "cpus": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.programs, options.rounds))))


if __name__ == "__main__":
    main()
