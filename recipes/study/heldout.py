"""python -m recipes.study.heldout RUN_DIR: grade every member of a run on the tiny base's held-out tasks.

Before its first update a member equals the base, so the base's scores are every founder's "before"; the members of the
newest checkpoint are the "after". Both answer the same tasks, once by greedy decoding (pass@1) and ``--samples`` times
at temperature 1. ``RUN_DIR/heldout.json`` holds the result (docs/run-directory.md); with ``--before`` another run's
file lends the base's scores if they are scores of the same base on the same tasks.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.tasks.types import Outcome, Task
from azr_overrides.tasks.verification import Verifier
from eval.members import BASE_NAME, EvalMember, base_revision, newest_checkpoint, population_members
from eval.types import ModelKind, UsageError
from recipes.tiny_base.evaluate import Bench
from recipes.tiny_base.heldout import HELDOUT_FILE, load_heldout
from recipes.tiny_base.sampler import Sampler
from verl_populora.files import write_atomically
from verl_populora.rundir import HELDOUT, RunDirError, RunReader

SAMPLES = 2
BATCH = 48  # completions sampled together; larger caches cost more in copies than they save
SEED = 0  # of the attempts at temperature 1, the same for every member


@dataclass(frozen=True, slots=True)
class Scores:
    """One member's results, task by task in the order of the file."""

    name: str
    role: str  # teacher, student, agent, or base
    adapter_sha256: str
    greedy: tuple[float, ...]  # 1.0 if the greedy answer is correct, else 0.0
    sampled: tuple[float, ...]  # share of correct answers at temperature 1

    def record(self, tasks: Sequence[Task]) -> dict[str, Any]:
        """All fields and the mean scores, over all tasks and by kind."""
        return {
            **asdict(self),
            "accuracy": {name: _means(getattr(self, name), tasks) for name in ("greedy", "sampled")},
        }


def _means(scores: Sequence[float], tasks: Sequence[Task]) -> dict[str, float]:
    by_kind = {
        str(kind): fmean(score for score, task in zip(scores, tasks, strict=True) if task.kind is kind)
        for kind in sorted({task.kind for task in tasks})
    }
    return {"all": fmean(scores), **by_kind}


@dataclass(frozen=True, slots=True)
class Job:
    """One pass over the held-out tasks; small enough for one core, so that cores share the members."""

    base: Path
    adapter: Path | None
    samples: int  # at temperature 1; 0: one greedy answer


def grade(base: Path, members: Sequence[EvalMember | None], samples: int, workers: int) -> list[Scores]:
    """Scores of every member; None stands for the base."""
    adapters = [Path(member.adapter) if member else None for member in members]
    jobs = [Job(base, adapter, count) for adapter in adapters for count in (0, samples)]
    with ProcessPoolExecutor(min(workers, len(jobs)), mp_context=get_context("spawn")) as pool:
        shares = list(pool.map(solve_heldout, jobs))
    results = []
    for member, greedy, sampled in zip(members, shares[::2], shares[1::2], strict=True):
        identity = (member.name, member.role, member.adapter_sha256) if member else (BASE_NAME, BASE_NAME, "")
        results.append(Scores(*identity, greedy, sampled))
    return results


def solve_heldout(job: Job) -> tuple[float, ...]:
    """Share of correct answers to each held-out task, in this process and on one core."""
    torch.set_num_threads(1)
    return asyncio.run(_solve_all(job, load_heldout()))


async def _solve_all(job: Job, tasks: Sequence[Task]) -> tuple[float, ...]:
    async with Sandbox(SandboxConfig(cpu_s=2, wall_s=2)) as sandbox:
        bench = Bench(Sampler(job.base, SEED, job.adapter), Verifier(sandbox), BATCH)
        attempts = await bench.solve(tasks, max(1, job.samples), temperature=1.0 if job.samples else 0.0)
    return tuple(fmean(verdict.outcome is Outcome.CORRECT for verdict in verdicts) for verdicts in attempts)


def measure(run_dir: Path, samples: int, before: Path | None, workers: int) -> Path:
    """Grade the newest checkpoint of ``run_dir`` and write its ``heldout.json``; returns that file's path.

    Raises:
        RunDirError: it is not a run directory.
        UsageError: it holds no checkpoint.
        ValueError: the task file is damaged.
    """
    base = Path(RunReader(run_dir).config()["actor_rollout_ref"]["model"]["path"])
    checkpoint = newest_checkpoint(run_dir)
    tasks = load_heldout()
    protocol = {
        "tasks": {
            "file": HELDOUT_FILE.name,
            "sha256": hashlib.sha256(HELDOUT_FILE.read_bytes()).hexdigest(),
            "kinds": [str(task.kind) for task in tasks],
        },
        "base_revision": base_revision(str(base), None),
        "samples": samples,
        "seed": SEED,
    }
    known = _known_base(before, protocol)
    members: list[EvalMember | None] = [*population_members(checkpoint, ModelKind.AZR)]
    scores = grade(base, members if known else [None, *members], samples, workers)
    records = [one.record(tasks) for one in scores]
    result = {
        **protocol,
        "base_model": str(base),
        "checkpoint": checkpoint.name,
        "before": known or records[0],
        "after": records if known else records[1:],
    }
    path = run_dir / HELDOUT
    write_atomically(path, json.dumps(result) + "\n")
    return path


def _known_base(path: Path | None, protocol: dict[str, Any]) -> dict[str, Any] | None:
    """The base's record in another run's file, if it was measured in the same way."""
    if path is None or not path.exists():
        return None
    other = json.loads(path.read_text(encoding="utf-8"))
    return other["before"] if all(other.get(key) == value for key, value in protocol.items()) else None


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN_DIR", type=Path)
    parser.add_argument("--samples", type=int, default=SAMPLES, help=f"attempts at temperature 1 (default: {SAMPLES})")
    parser.add_argument("--before", metavar="FILE", type=Path, help="heldout.json of another run on the same base")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes (default: one a core)")
    arguments = parser.parse_args(argv)
    for name in ("samples", "workers"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1, not {getattr(arguments, name)}")
    try:
        print(measure(arguments.run, arguments.samples, arguments.before, arguments.workers))
    except (RunDirError, UsageError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
