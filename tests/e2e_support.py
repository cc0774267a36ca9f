"""Start real training runs on the tiny base in processes of their own, watch them, and kill them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from verl_populora.adapters.peft_io import read_peft

ROOT = Path(__file__).parents[1]
SCRIPT = 'source recipes/tiny_base/preset.sh && exec "$0" -m azr_overrides.main "${TINY_OVERRIDES[@]}" "$@"'
SMALL = (
    "data.train_batch_size=1",
    "azr.reward.n_samples=2",
    "data.max_response_length=96",
    "actor_rollout_ref.rollout.max_model_len=352",
    "trainer.save_freq=1",
    "trainer.max_actor_ckpt_to_keep=null",
)
POPULATION = ("population=2t2s", "population.evolution.interval=2", "trainer.total_training_steps=4")


class Run:
    """The entry point at work in ``run_dir``; use it as a context manager, which leaves no process behind."""

    def __init__(self, run_dir, *overrides: str, env: Mapping[str, str] | None = None):
        self.run_dir = Path(run_dir)
        self._output = self.run_dir.with_name(self.run_dir.name + ".log").open("w+")
        self.process = subprocess.Popen(
            ["bash", "-c", SCRIPT, sys.executable, *SMALL, f"run_dir={run_dir}", *overrides],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(env or {}),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()
        self._output.close()

    @property
    def output(self) -> str:
        return Path(self._output.name).read_text()

    def wait(self, timeout: float = 900) -> int:
        """The exit code."""
        return self.process.wait(timeout)

    def wait_until(self, happened: Callable[[], bool], timeout: float = 600) -> None:
        """Return as soon as ``happened()`` is true; fail if the run ends before."""
        end = time.monotonic() + timeout
        while not happened():
            assert self.process.poll() is None, self.output[-6000:]
            assert time.monotonic() < end, f"not within {timeout} s: {self.output[-6000:]}"
            time.sleep(0.001)

    def tree(self, name: str = "") -> list[psutil.Process]:
        """The run's processes, the main one last, whose command line contains ``name``."""
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self.process.pid)
            return [p for p in [*main.children(recursive=True), main] if name in _command(p)]
        return []

    def kill(self) -> None:
        """Kill every process of the run at once, as a crash of the machine would."""
        processes = self.tree()
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        psutil.wait_procs(processes, timeout=30)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def train(run_dir, *overrides: str, timeout: float = 900) -> str:
    """Run the entry point to its end; returns what it printed."""
    with Run(run_dir, *overrides) as run:
        code = run.wait(timeout)
        output = run.output
    assert code == 0, output[-6000:]
    return output


def lines(path) -> list[dict]:
    """Whole lines of a file that is being written."""
    if not Path(path).exists():
        return []
    return [json.loads(line) for line in Path(path).read_text().splitlines(keepends=True) if line.endswith("\n")]


def checkpoint(run_dir, step) -> Path:
    return Path(run_dir) / "checkpoints" / f"step_{step}"


def members(run_dir, step) -> list[dict]:
    return json.loads((checkpoint(run_dir, step) / "population.json").read_text())["members"]


def adapter(run_dir, step, name):
    return read_peft(checkpoint(run_dir, step) / "adapters" / name).weights


def differs(one, other) -> bool:
    return any(not one.modules[m].b.equal(other.modules[m].b) for m in one.modules)
