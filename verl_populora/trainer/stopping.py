"""Ask a run to end after its current step, with a checkpoint: a file in the run directory.

A file reaches the trainer wherever its process is, also on another node of a cluster that shares the file system.
"""

from pathlib import Path

_NAME = "stop"


def request(run_dir: str | Path) -> None:
    (Path(run_dir) / _NAME).touch()


def requested(run_dir: str | Path) -> bool:
    return (Path(run_dir) / _NAME).exists()


def clear(run_dir: str | Path) -> None:
    (Path(run_dir) / _NAME).unlink(missing_ok=True)
