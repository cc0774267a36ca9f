"""From plan, completions and verdicts to one result for each member and benchmark."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from eval.data.registry import BENCHMARKS
from eval.grade import grade_key, grader_name
from eval.store import Store, write_json
from eval.types import Profile, Status


@dataclass(frozen=True, slots=True)
class MemberInfo:
    name: str
    group: str  # "base", "baseline" or "population"
    role: str
    kind: str
    adapter_sha256: str
    rating: tuple[float, float] | None


@dataclass(frozen=True, slots=True)
class BenchmarkResult:
    """One member on one benchmark. ``scores``: share of correct samples, by problem, in the order of the data."""

    member: str
    benchmark: str
    expected: int  # completions that the plan asks for
    graded: int
    scores: dict[str, float]
    statuses: dict[str, int] = field(default_factory=dict)  # completions by status
    truncated: int = 0  # ran into the token limit
    too_long: int = 0  # prompts that did not fit
    tokens: int = 0
    templates: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        return self.graded == self.expected > 0

    def vector(self, problem_ids: list[str]) -> np.ndarray:
        return np.array([self.scores[problem_id] for problem_id in problem_ids])


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Everything that the table needs of one output directory."""

    label: str
    run: dict
    members: list[MemberInfo]
    results: dict[tuple[str, str], BenchmarkResult]  # (member, benchmark)
    isolation: str = ""

    def complete_benchmarks(self) -> list[str]:
        """Benchmarks that every member has completed, in table order."""
        return [
            name
            for name in BENCHMARKS
            if self.members
            and all((result := self.results.get((m.name, name))) is not None and result.complete for m in self.members)
        ]


def collect(directory: Path, label: str = "", completions: Path | None = None) -> Evaluation:
    """Read one output directory. Raises UsageError if it holds no evaluation."""
    store = Store(directory, completions)
    run = store.read_run()
    profile = Profile(run["profile"])
    texts = store.read_completions()
    grades = {name: store.read_grades(grader_name(name, profile)) for name in run["benchmarks"]}
    entries: dict[tuple[str, str], list] = {}
    for entry in store.read_plan():
        entries.setdefault((entry.member, entry.benchmark), []).append(entry)
    results = {}
    for (member, benchmark), planned in entries.items():
        by_problem: dict[str, list[bool]] = {}
        statuses: Counter[str] = Counter()
        truncated = too_long = tokens = graded = 0
        for entry in planned:
            completion = texts.get(entry.key)
            verdict = grades.get(benchmark, {}).get(grade_key(entry))
            if completion is None or verdict is None:
                continue
            graded += 1
            statuses[verdict.status] += 1
            truncated += completion.finish_reason == "length"
            too_long += completion.finish_reason == "prompt_too_long"
            tokens += completion.tokens
            by_problem.setdefault(entry.problem_id, []).append(verdict.status is Status.CORRECT)
        results[member, benchmark] = BenchmarkResult(
            member,
            benchmark,
            len(planned),
            graded,
            {problem: sum(samples) / len(samples) for problem, samples in by_problem.items()},
            dict(sorted(statuses.items())),
            truncated,
            too_long,
            tokens,
            tuple(sorted({entry.template for entry in planned})),
        )
    members = [
        MemberInfo(
            row["name"], row["group"], row["role"], row["kind"], row["adapter_sha256"],
            tuple(row["rating"]) if row["rating"] else None,
        )
        for row in run["members"]
    ]  # fmt: skip
    isolation_path = directory / "isolation.json"
    isolation = ""
    if isolation_path.exists():
        import json

        isolation = json.loads(isolation_path.read_text())["level"]
    return Evaluation(label or directory.name, run, members, results, isolation)


def write_results(directory: Path, evaluation: Evaluation) -> None:
    """``results.json``: one record a member and benchmark, with every item."""
    records = []
    for result in evaluation.results.values():
        records.append(
            {
                "member": result.member,
                "benchmark": result.benchmark,
                "complete": result.complete,
                "n": len(result.scores),
                "expected_completions": result.expected,
                "graded_completions": result.graded,
                "accuracy": float(np.mean(list(result.scores.values()))) if result.complete else None,
                "statuses": result.statuses,
                "truncated": result.truncated,
                "prompt_too_long": result.too_long,
                "tokens": result.tokens,
                "templates": list(result.templates),
                "items": result.scores,
            }
        )
    write_json(
        directory / "results.json",
        {"run": evaluation.run, "isolation": evaluation.isolation, "results": records},
    )
