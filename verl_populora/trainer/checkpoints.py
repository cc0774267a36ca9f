"""Checkpoint folders that are whole or absent: ``<root>/step_<n>/``, written beside and renamed into place.

Writing (`stage`) and counting (`commit`) are two steps, so that a run can finish its records of a step in between.
"""

import logging
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

logger = logging.getLogger(__name__)

_FOLDER = re.compile(r"step_(\d+)")
_PARTIAL = re.compile(r"\.step_\d+\.(partial|doomed)")


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
    """`stage` and `commit` in one."""
    return commit(stage(root, step, write), keep)


def stage(root: Path, step: int, write: Callable[[Path], None]) -> Path:
    """Write a checkpoint that does not count yet; returns the folder to `commit`.

    Args:
        write: fills the folder it is given.

    Raises:
        OSError: the folder could not be written; nothing incomplete is left and older checkpoints are untouched.
    """
    partial = root / f".step_{step}.partial"
    root.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        write(partial)
        _flush(partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return partial


def commit(partial: Path, keep: int | None) -> Path:
    """Make a staged checkpoint the newest one, and prune old ones.

    Args:
        keep: how many checkpoints stay, the new one included; None keeps all.

    Raises:
        OSError: the folder could not be renamed; older checkpoints are untouched.
    """
    root, target = partial.parent, partial.with_name(partial.stem.removeprefix("."))
    if target.exists():
        _remove(target)
    partial.rename(target)
    _flush_folder(root)
    if keep is not None:
        for old in _complete(root)[:-keep]:
            _remove(old)
    return target


def oldest_step(root: Path) -> int:
    """The step of the oldest complete checkpoint, which must exist."""
    return step_of(_complete(root)[0])


def remove_partial(root: Path) -> None:
    """Remove what a kill left half-written or half-deleted."""
    for path in root.iterdir() if root.is_dir() else ():
        if path.is_dir() and _PARTIAL.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _remove(folder: Path) -> None:
    # Renamed first, so that a half-deleted checkpoint is never taken for a complete one.
    doomed = folder.with_name(f".{folder.name}.doomed")
    shutil.rmtree(doomed, ignore_errors=True)
    folder.rename(doomed)
    shutil.rmtree(doomed, ignore_errors=True)


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
