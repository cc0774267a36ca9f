"""Checkpoint folders that are whole or absent: ``<root>/step_<n>/``, written beside and renamed into place."""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"step_(\d+)")


def latest(root: Path) -> Path | None:
    """The newest complete checkpoint under ``root``."""
    found = _complete(root)
    return found[-1] if found else None


def step_of(folder: Path) -> int:
    """The step in a checkpoint folder's name.

    Raises:
        ValueError: it is not a checkpoint folder's name.
    """
    match = _FOLDER.fullmatch(folder.name)
    if match is None:
        raise ValueError(f"{folder} is not a checkpoint: expected a folder named step_<number>")
    return int(match[1])


def save(root: Path, step: int, write: Callable[[Path], None], keep: int | None) -> Path:
    """Write one checkpoint and prune old ones.

    Args:
        write: fills the folder it is given.
        keep: how many checkpoints stay, the new one included; None keeps all.

    Raises:
        OSError: the folder could not be written; nothing incomplete is left and older checkpoints are untouched.
    """
    target, partial = root / f"step_{step}", root / f".step_{step}.partial"
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        _flush(partial)
        if target.exists():
            shutil.rmtree(target)
        partial.rename(target)
        _flush_folder(root)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if keep is not None:
        for old in _complete(root)[:-keep]:
            # Renamed first, so that a half-deleted checkpoint is never taken for a complete one.
            doomed = old.rename(root / f".{old.name}.partial")
            shutil.rmtree(doomed, ignore_errors=True)
    return target


def check_writable(root: Path) -> None:
    """Fail before training rather than at the first checkpoint.

    Raises:
        OSError: ``root`` can't be created or written; the message names it.
    """
    probe = root / ".writable"
    try:
        root.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"x")
        probe.unlink()
    except OSError as error:
        raise OSError(error.errno, f"can't write to {root} ({error.strerror}); set run_dir to another place") from error


def _complete(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted((p for p in root.iterdir() if p.is_dir() and _FOLDER.fullmatch(p.name)), key=step_of)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
