"""The files of one output directory, by which the stages meet. JSON lines are append-only; the rest is atomic.

run.json                what was asked for: base, members, profile, sampling, data hashes, versions
plan.jsonl              which completion (key) belongs to which member, benchmark, problem and sample
prompts/*.jsonl         every rendered prompt, for reading
completions/*.jsonl     what the models wrote, by key; one file a writer, merged when read
grades/<grader>.jsonl   verdicts by key; one file for each version of a grader and profile
results.json            one record a member and benchmark;  table.*  the rendered results
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eval.types import Completion, Grade, Request, Sampling, Status, UsageError
from verl_populora.files import write_atomically

SCHEMA = 1


def request_key(base: str, adapter_sha256: str, prompt: str, sampling: Sampling, sample: int, engine: str) -> str:
    """Cache key of one completion: base weights, adapter weights, rendered prompt, sampling, engine and dtype."""
    identity = [base, adapter_sha256, prompt, asdict(sampling), sample, engine]
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:40]


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def read_lines(path: Path) -> Iterator[dict]:
    """Rows of a JSON-lines file. A last line that a crash cut off is left out; damage elsewhere is an error."""
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            yield json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                return
            raise UsageError(f"{path}, line {number}: damaged ({error.msg}); delete that line to go on") from error


class Appender:
    """Appends rows to one file, each in a single write. A torn last line from a crash is cut off first."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._stream = path.open("ab+")
        size = self._stream.seek(0, os.SEEK_END)
        if size:
            data = path.read_bytes()
            if not data.endswith(b"\n"):
                self._stream.truncate(data.rfind(b"\n") + 1)

    def append(self, row: dict) -> None:
        self._stream.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n")
        self._stream.flush()

    def close(self) -> None:
        os.fsync(self._stream.fileno())
        self._stream.close()

    def __enter__(self) -> "Appender":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One wanted completion, without its prompt."""

    key: str
    member: str
    benchmark: str
    problem_id: str
    sample: int
    template: str


class Store:
    """One output directory. ``completions`` may lie elsewhere, to be shared by several evaluations."""

    def __init__(self, directory: Path, completions: Path | None = None) -> None:
        self.directory = directory
        self._completions = completions or directory / "completions"

    @property
    def run_path(self) -> Path:
        return self.directory / "run.json"

    def read_run(self) -> dict:
        if not self.run_path.exists():
            raise UsageError(
                f"{self.directory} holds no evaluation (run.json is missing); start one with: python -m eval run"
            )
        run = json.loads(self.run_path.read_text())
        if run.get("schema") != SCHEMA:
            raise UsageError(f"{self.run_path} has schema {run.get('schema')}; this version reads {SCHEMA}")
        return run

    def write_plan(self, requests: Iterable[Request]) -> None:
        """Add to the plan; an entry for the same member, benchmark, problem and sample is replaced."""
        plan = {(e.member, e.benchmark, e.problem_id, e.sample): e for e in self.read_plan()}
        for r in requests:
            plan[r.member, r.benchmark, r.problem_id, r.sample] = PlanEntry(
                r.key, r.member, r.benchmark, r.problem_id, r.sample, r.template
            )
        path = self.directory / "plan.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(json.dumps(asdict(entry)) + "\n" for entry in plan.values()))

    def read_plan(self) -> list[PlanEntry]:
        path = self.directory / "plan.jsonl"
        return [PlanEntry(**row) for row in read_lines(path)] if path.exists() else []

    def read_completions(self) -> dict[str, Completion]:
        found = {}
        for path in sorted(self._completions.glob("*.jsonl")):
            for row in read_lines(path):
                found[row["key"]] = Completion(**row)
        return found

    def completion_appender(self, shard: str) -> Appender:
        return Appender(self._completions / f"{shard}.jsonl")

    def prompt_appender(self, shard: str) -> Appender:
        return Appender(self.directory / "prompts" / f"{shard}.jsonl")

    def grades_path(self, grader: str) -> Path:
        return self.directory / "grades" / f"{grader}.jsonl"

    def read_grades(self, grader: str) -> dict[str, Grade]:
        path = self.grades_path(grader)
        if not path.exists():
            return {}
        return {row["key"]: Grade(**(row | {"status": Status(row["status"])})) for row in read_lines(path)}
