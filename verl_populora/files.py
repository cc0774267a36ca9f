"""Writing files so that a reader, or a crash, never meets half of one."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TEMPORARY = re.compile(r"\..+\.\d+")


def write_atomically(path: Path, text: str) -> None:
    """Replace ``path`` by ``text`` (UTF-8) as a whole: after a crash it holds either the old text or the new one."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to; what lies there at the end of the block takes the place of ``path``, whole and on disk."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove what `replacing` could not finish in ``folder`` because its process was killed."""
    for path in folder.glob(".*"):
        if path.is_file() and _TEMPORARY.fullmatch(path.name):
            path.unlink(missing_ok=True)
