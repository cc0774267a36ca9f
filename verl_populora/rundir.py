"""Write and read the run directory described in ``docs/run-directory.md``.

The writer appends whole lines or replaces whole files, so that a reader never sees half an object except for
a last line that was cut when the process died; the reader ignores that line and the writer removes it before
it appends.
"""

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_populora.files import remove_leftovers, write_atomically
from verl_populora.members import Member

Record = dict[str, Any]

CONFIG = "config.yaml"
RUN_INFO = "run.json"
METRICS = "metrics.jsonl"
MATCHES = "matches.jsonl"
LINEAGE = "lineage.jsonl"
EVOLUTION = "evolution.jsonl"
HELDOUT = "heldout.json"
TASKS = "tasks"

# The field that says to which step a line belongs, for each append-only file.
STEP_FIELD = {METRICS: "step", MATCHES: "step", LINEAGE: "birth_step", EVOLUTION: "step"}
TASK_FILE = re.compile(r"step_(\d{6,})\.jsonl")


class RunDirError(ValueError):
    """A run directory is missing, damaged or not one; the message names the file and line."""


def member_record(member: Member) -> Record:
    """One line of ``lineage.jsonl``: every field of ``member`` and its unique ``name``."""
    record = asdict(member)
    return {"name": member.name, **record, "role": member.role.value}


class RunWriter:
    """The one writer of a run directory.

    Args:
        path: the directory; created with its parents when missing. Opening an existing run removes lines that
            were cut by a crash; on resume call `truncate_after` with the step of the checkpoint before
            anything is written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        (self.path / TASKS).mkdir(parents=True, exist_ok=True)
        for folder in (self.path, self.path / TASKS):
            remove_leftovers(folder)
        for name in STEP_FIELD:
            _drop_torn_line(self.path / name)

    def config(self, config: dict[str, Any] | DictConfig) -> None:
        """Write the configuration with every interpolation resolved."""
        write_atomically(self.path / CONFIG, OmegaConf.to_yaml(OmegaConf.create(config), resolve=True))

    def run_info(self, info: Mapping[str, Any]) -> None:
        """Replace ``run.json``; pass the whole object each time."""
        write_atomically(self.path / RUN_INFO, json.dumps(_plain(info), indent=2, ensure_ascii=False) + "\n")

    def metrics(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Append one step's metrics: numbers; a non-finite one is written as null (JSON has no NaN).

        Raises:
            TypeError: a value is not a number.
        """
        numbers = {}
        for name, value in metrics.items():
            number = _plain(value)
            if number is not None and (isinstance(number, str | bool) or not isinstance(number, int | float)):
                raise TypeError(f"metric {name!r} is {value!r}; metrics are numbers")
            numbers[name] = number
        self._append(METRICS, [{"step": step, **numbers}])

    def matches(self, matches: Iterable[Mapping[str, Any]]) -> None:
        """Append match records; each names its own step."""
        self._append(MATCHES, matches)

    def tasks(self, step: int, proposals: Iterable[Mapping[str, Any]]) -> None:
        """Write all proposals of one step as one file."""
        write_atomically(self.path / TASKS / f"step_{step:06d}.jsonl", "".join(map(_line, proposals)))

    def birth(self, record: Mapping[str, Any]) -> None:
        """Append one member, founders included; `member_record` makes the record."""
        self._append(LINEAGE, [record])

    def evolution(self, record: Mapping[str, Any]) -> None:
        """Append one evolution."""
        self._append(EVOLUTION, [record])

    def truncate_after(self, step: int) -> None:
        """Forget everything later than ``step``, so that a resumed run does not count a step twice."""
        for name, field in STEP_FIELD.items():
            path = self.path / name
            if path.exists():
                kept = [record for record in _read_lines(path) if record[field] <= step]
                write_atomically(path, "".join(map(_line, kept)))
        for file in (self.path / TASKS).iterdir():
            match = TASK_FILE.fullmatch(file.name)
            if match and int(match[1]) > step:
                file.unlink()

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        field = STEP_FIELD[name]
        lines = []
        for record in records:
            if field not in record:
                raise ValueError(f"a record for {name} has no {field!r}: {record!r}")
            lines.append(_line(record))
        with open(self.path / name, "a", encoding="utf-8") as file:
            file.write("".join(lines))
            file.flush()
            os.fsync(file.fileno())


class RunReader:
    """Read a run directory, finished or in progress; what has not been written yet reads as empty.

    Raises:
        RunDirError: the directory does not exist, or holds no metrics, ``run.json`` or ``config.yaml``.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise RunDirError(f"{self.path} is not a directory; give the directory that holds {METRICS}")
        if not any((self.path / name).exists() for name in (METRICS, RUN_INFO, CONFIG)):
            raise RunDirError(f"{self.path} is not a run directory: it has no {METRICS}, {RUN_INFO} or {CONFIG}")

    def config(self) -> Record:
        path = self.path / CONFIG
        return dict(OmegaConf.to_container(OmegaConf.load(path)) or {}) if path.exists() else {}  # type: ignore[arg-type]

    def run_info(self) -> Record:
        return self._object(RUN_INFO)

    def heldout(self) -> Record:
        """Scores on held-out tasks before and after training."""
        return self._object(HELDOUT)

    def metrics(self) -> list[Record]:
        """One object a step, in file order."""
        return _read_lines(self.path / METRICS)

    def matches(self) -> list[Record]:
        return _read_lines(self.path / MATCHES)

    def lineage(self) -> list[Record]:
        return _read_lines(self.path / LINEAGE)

    def evolution(self) -> list[Record]:
        return _read_lines(self.path / EVOLUTION)

    def task_steps(self) -> list[int]:
        """Steps for which proposals were recorded, ascending."""
        folder = self.path / TASKS
        if not folder.is_dir():
            return []
        found = (TASK_FILE.fullmatch(file.name) for file in folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def tasks(self, step: int) -> list[Record]:
        """Proposals of ``step``; empty when there is no file for it."""
        return _read_lines(self.path / TASKS / f"step_{step:06d}.jsonl")

    def _object(self, name: str) -> Record:
        path = self.path / name
        if not path.exists():
            return {}
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise RunDirError(f"{path}: not JSON: {error}") from error


def _plain(value: Any) -> Any:
    """``value`` (numpy, torch, paths, containers) as JSON types; NaN and infinity as None."""
    if value is None or isinstance(value, bool | int | str):
        return str(value) if isinstance(value, str) else value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in (sorted(value) if isinstance(value, set | frozenset) else value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    to_python: Callable[[], Any] | None = getattr(value, "tolist", None)  # numpy and torch, scalars and arrays
    if to_python is not None:
        return _plain(to_python())
    raise TypeError(f"cannot write {type(value).__name__} {value!r} as JSON")


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_plain(record), ensure_ascii=False, allow_nan=False) + "\n"


def _read_lines(path: Path) -> list[Record]:
    if not path.exists():
        return []
    text = path.read_bytes()
    # A line without its newline is still being written, or was cut by a crash.
    complete = text[: text.rfind(b"\n") + 1]
    records = []
    for number, line in enumerate(complete.split(b"\n")[:-1], start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise RunDirError(f"{path}:{number}: not JSON: {error}") from error
        if not isinstance(record, dict):
            raise RunDirError(f"{path}:{number}: expected an object, got {type(record).__name__}")
        records.append(record)
    return records


def _drop_torn_line(path: Path) -> None:
    if path.exists():
        text = path.read_bytes()
        complete = text.rfind(b"\n") + 1
        if complete < len(text):
            os.truncate(path, complete)
