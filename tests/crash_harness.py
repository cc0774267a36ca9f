"""Kill a training process at random moments, many times, and resume it each time.

    python -m tests.crash_harness DIRECTORY [--steps 64] [--kills 30] [--seed 0]

The process runs the population trainer's own bookkeeping (matches, ratings, evolution, hall of fame, checkpoints,
buffers, run directory) through its real methods, with small adapters in memory where a run has a language model, and
without Ray and vLLM. Every step evolves and saves. Every other kill comes from inside, at a file that is being flushed
or at the end of a phase, the others from outside at a random time. The process is forked from this one, so that a
start costs nothing. Writes ``DIRECTORY/straight`` (never killed) and ``DIRECTORY/killed`` and prints, as JSON, in which
phase each kill hit. ``tests/test_crashes.py`` starts it, in the environment that verl reads when it is imported.
"""

# verl carries no types.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false, reportIncompatibleVariableOverride=false

import argparse
import contextlib
import json
import mmap
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from azr_overrides.buffers import TaskBuffers
from azr_overrides.tasks.types import Task, TaskKind
from tests.engine_setup import init_process_group
from verl_populora.engine.worker import PopulationWorker
from verl_populora.evolution.config import EvolutionConfig
from verl_populora.layout import PopulationLayout
from verl_populora.population import Population, PopulationRules
from verl_populora.selfplay.ratings import MatchObservation
from verl_populora.trainer.population_trainer import PopulationTrainer
from verl_populora.trainer.trackers import Trackers

PHASES = ("start", "plan", "records", "update", "evolution", "checkpoint", "metrics")
RANK, ALPHA, WIDTH = 2, 4, 6
MODULES = ("model.layers.0.self_attn.q_proj", "model.layers.1.mlp.up_proj")


class Adapters:
    """What PopulationWorker needs of an engine: weights that "train" by noise which seat and version determine."""

    def __init__(self, layout: PopulationLayout):
        self.layout = layout
        self.versions = dict.fromkeys(layout.seats, 0)
        self.model_config = SimpleNamespace(path="base", lora_rank=RANK, lora_alpha=ALPHA)
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
            torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))]), lambda step: 1.0
        )
        self.lora = self
        self._weights = {seat: self._noise(seat) for seat in layout.seats}
        self._moments = {seat: torch.zeros(3) for seat in layout.seats}

    def _noise(self, seat: str) -> dict[str, torch.Tensor]:
        rng = np.random.default_rng([self.layout.id_of(seat), self.versions[seat]])
        shapes = {"lora_A": (RANK, WIDTH), "lora_B": (WIDTH, RANK)}
        return {
            f"base_model.model.{module}.{factor}.weight": torch.tensor(rng.normal(size=shape), dtype=torch.float32)
            for module in MODULES
            for factor, shape in shapes.items()
        }

    def train(self) -> None:
        for seat in self.layout.seats:
            self.versions[seat] += 1
            noise = self._noise(seat)
            self._weights[seat] = {name: 0.9 * w + 0.1 * noise[name] for name, w in self._weights[seat].items()}
            self._moments[seat] = 0.5 * self._moments[seat] + self.versions[seat]
        self.lr_scheduler.step()

    def export_member(self, seat: str) -> dict[str, torch.Tensor]:
        return self._weights[seat]

    def export_optimizer(self, seat: str) -> dict[str, torch.Tensor]:
        return {"moments/exp_avg": self._moments[seat]}

    def load_optimizer(self, seat: str, flat: dict[str, torch.Tensor]) -> None:
        self._moments[seat] = flat["moments/exp_avg"]

    def load(self, seat: str, state: dict[str, torch.Tensor]) -> None:
        self._weights[seat] = dict(state)

    def replace_member(self, seat: str, state: dict[str, torch.Tensor]) -> None:
        self.load(seat, state)
        self._moments[seat] = torch.zeros(3)
        self.versions[seat] += 1

    def peft_config(self, seat: str) -> dict[str, Any]:
        return {}


class Worker(PopulationWorker):
    def __init__(self, engine: Adapters):
        self.engine = engine

    @property
    def _engine(self) -> Adapters:
        return self.engine


class OneRank:
    """A worker group of one rank in this process."""

    def __init__(self, worker: Worker):
        self._worker = worker

    def __getattr__(self, name: str):
        return lambda *arguments: [getattr(self._worker, name)(*arguments)]


class Trainer(PopulationTrainer):
    """The population trainer without verl's constructor and step; episodes are made up from the random streams."""

    def __init__(self, run_dir: Path, steps: int, phase: mmap.mmap, trap: "Trap | None" = None):
        layout = PopulationLayout.build(2, 2)
        evolution = EvolutionConfig(interval=1, hall_of_fame=2)
        rules = PopulationRules(evolution=evolution, rank=RANK, alpha=ALPHA)
        self.phase = phase
        self.trap = trap
        self.rng = np.random.default_rng(5)
        self.buffers = TaskBuffers()
        config = OmegaConf.create(
            {
                "run_dir": str(run_dir),
                "trainer": {
                    "default_local_dir": str(run_dir / "checkpoints"),
                    "max_actor_ckpt_to_keep": 2,
                    "resume_mode": "auto",
                },
                "actor_rollout_ref": {"model": {"path": "base"}},
                "population": {"initial_adapters": None},
            }
        )
        super().__init__(config, Population(layout, rules, seed=3))
        self.engine = Adapters(layout)
        self.actor_rollout_wg = OneRank(Worker(self.engine))
        self.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None)
        self.total_training_steps, self.steps_per_epoch = steps, steps
        self.logger = Trackers("crash", "crash", [])

    def enter(self, phase: str) -> None:
        if self.trap is not None:
            self.trap.enter(phase)
        self.phase[0] = PHASES.index(phase)

    def run(self) -> None:
        self._load_checkpoint()
        self.on_init_end()
        while self.global_steps < self.total_training_steps:
            self.global_steps += 1
            self.timing_raw = {}
            self.enter("plan")
            matches = self.population.make_matches(self.global_steps)
            self.enter("records")
            self._record(matches)
            self.enter("update")
            self.engine.train()
            self._save_checkpoint()
            self.on_step_end()
            self.enter("metrics")
            self._compute_metrics(None, {}, self.timing_raw, self.global_steps, 0)

    def _record(self, matches) -> None:
        step, outcomes = self.global_steps, []
        for match in matches:
            rate = float(self.rng.random())
            outcomes.append({"step": step, **self.population.record_match(match, MatchObservation(rate, 4, 16))})
        number = int(self.rng.integers(1 << 30))
        task = Task(f"t{step}", TaskKind.CODE_O, f"def f(x):\n    return x + {number}", ("1",), (str(number + 1),))
        self.buffers.add(task)
        self.writer.tasks(step, [{"step": step, "task_id": task.task_id, "program": task.program}])
        self.writer.matches(outcomes)

    def _evolve(self) -> None:
        self.enter("evolution")
        super()._evolve()

    def _stage_checkpoint(self) -> None:
        self.enter("checkpoint")
        super()._stage_checkpoint()

    def _check_delivery(self) -> None:
        """Nothing is delivered: there is no rollout engine."""

    def plan_episodes(self, step):
        raise NotImplementedError

    def absorb(self, batch, metrics):
        raise NotImplementedError

    def on_sample_end(self):
        raise NotImplementedError

    def task_streams(self):
        return (self.rng,)

    def task_state(self):
        return {"buffers": self.buffers.state_dict(), "rng": self.rng.bit_generator.state}

    def load_task_state(self, state):
        self.buffers.load_state_dict(state["buffers"])
        self.rng.bit_generator.state = state["rng"]


class Trap:
    """Kills its own process in a visit of the phase ``target``: at a file that it flushes, or at the phase's end.

    Where the process is killed does not depend on how busy the machine is, unlike a kill from outside.
    """

    def __init__(self, target: str, skipped: int, flushes: int):
        self.target = target
        self.visits_left = skipped + 1
        self.flushes_left = flushes
        self.inside = False
        flush = os.fsync

        def flush_or_die(descriptor: int) -> None:
            if self.inside:
                self.flushes_left -= 1
                if self.flushes_left <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            flush(descriptor)

        os.fsync = flush_or_die

    def enter(self, phase: str) -> None:
        if self.inside:
            os.kill(os.getpid(), signal.SIGKILL)
        self.visits_left -= phase == self.target
        self.inside = phase == self.target and self.visits_left == 0


def start(run_dir: Path, steps: int, phase: mmap.mmap, trap: tuple[str, int, int] | None = None) -> int:
    """Run or resume ``run_dir`` in a fork of this process, with the arguments of a `Trap`; returns its pid."""
    phase[0] = 0
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        init_process_group()
        Trainer(run_dir, steps, phase, Trap(*trap) if trap else None).run()
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def kill_near(pid: int, phase: mmap.mmap, target: str, skipped: int, delay: float) -> str | None:
    """Wait for a visit of ``target`` and ``delay`` seconds more, and kill the process, wherever it is by then.

    Returns the phase that the kill hit; None if the process had ended.
    """
    for _ in range(skipped + 1):
        for inside in (False, True):
            while (PHASES[phase[0]] == target) is not inside:
                if os.waitpid(pid, os.WNOHANG)[0]:
                    return None
                time.sleep(0.0001)
    time.sleep(delay)
    hit = PHASES[phase[0]]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return hit


def wait_for_trap(pid: int, phase: mmap.mmap) -> str | None:
    """The phase that the process killed itself in; None if it ended by itself."""
    _, status = os.waitpid(pid, 0)
    return PHASES[phase[0]] if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    # verl's constructor starts Ray, and its figures come from the rollout.
    PPOTrainer.__init__ = lambda self, config: setattr(self, "config", config)
    PPOTrainer._compute_metrics = lambda *arguments, **keywords: None
    torch.set_num_threads(1)
    phase = mmap.mmap(-1, 1)
    began = time.monotonic()
    _, status = os.waitpid(start(options.directory / "straight", options.steps, phase), 0)
    assert status == 0, "the undisturbed run failed"
    a_step = (time.monotonic() - began) / options.steps
    rng, hits, starts = random.Random(options.seed), Counter(), 0
    targets = ("checkpoint", "records", "evolution", "update", "checkpoint", "metrics", "evolution", "plan", "records")
    while hits.total() < options.kills:
        target, skipped = targets[starts % len(targets)], rng.randrange(2)
        trap = None if starts % 2 else (target, skipped, rng.randrange(1, 12))
        pid = start(options.directory / "killed", options.steps, phase, trap)
        with contextlib.suppress(ChildProcessError):
            outside = (phase, target, skipped, rng.uniform(0, a_step))
            hit = wait_for_trap(pid, phase) if trap else kill_near(pid, *outside)
        starts += 1
        if hit is None:
            break
        hits[hit] += 1
    _, status = os.waitpid(start(options.directory / "killed", options.steps, phase), 0)
    assert status == 0, "the last resume failed"
    print(json.dumps({"kills": hits.total(), "by_phase": dict(hits), "starts": starts + 1, "step_s": round(a_step, 4)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
