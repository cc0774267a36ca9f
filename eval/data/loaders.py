"""Data files to problems. The number of problems is checked; every problem has a stable id."""

import json
from pathlib import Path
from typing import Any

from eval.data.registry import Benchmark
from eval.extract import last_box
from eval.types import Problem, UsageError


def read_jsonl(path: Path) -> list[dict]:
    """Raises UsageError naming the line that is not JSON."""
    rows = []
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except json.JSONDecodeError as error:
                    raise UsageError(f"{path}, line {number}: not JSON ({error.msg})") from error
    return rows


def load_problems(benchmark: Benchmark, paths: list[Path], check_count: bool = True) -> list[Problem]:
    """All problems of a benchmark, in file order. Raises UsageError on a wrong count or a malformed record."""
    rows = [(path, row) for path in paths for row in read_jsonl(path)]
    convert = _CONVERTERS.get(benchmark.name, _math_problem)
    problems = []
    for index, (path, row) in enumerate(rows):
        try:
            problems.append(convert(benchmark.name, index, row))
        except (KeyError, TypeError, IndexError, ValueError) as error:
            raise UsageError(f"{path}: record {index} is not a {benchmark.title} problem ({error!r})") from error
    if check_count and len(problems) != benchmark.size:
        names = ", ".join(str(path) for path in paths)
        raise UsageError(f"{benchmark.title}: {len(problems)} problems in {names}, expected {benchmark.size}")
    ids = {problem.problem_id for problem in problems}
    if len(ids) != len(problems):
        raise UsageError(f"{benchmark.title}: {len(problems) - len(ids)} problem ids are not unique")
    return problems


def _math_problem(benchmark: str, index: int, row: dict) -> Problem:
    question = row.get("question") or row["problem"]
    return Problem(benchmark, f"{index:04d}", question.strip(), str(row["answer"]))


def _gsm8k_problem(benchmark: str, index: int, row: dict) -> Problem:
    return Problem(benchmark, f"{index:04d}", row["question"].strip(), row["answer"].rsplit("####", 1)[1].strip())


def _minerva_problem(benchmark: str, index: int, row: dict) -> Problem:
    gold = last_box(row["solution"])
    if gold is None:
        raise ValueError("no boxed answer in the solution")
    return Problem(benchmark, f"{index:04d}", row["problem"].strip(), gold)


def _olympiad_problem(benchmark: str, index: int, row: dict) -> Problem:
    return Problem(benchmark, f"{index:04d}", row["question"].strip(), row["final_answer"][0])


def _evalplus_problem(benchmark: str, index: int, row: dict) -> Problem:
    payload = {
        key: row[key] for key in ("entry_point", "canonical_solution", "base_input", "plus_input", "atol", "prompt")
    }
    return Problem(benchmark, row["task_id"], row["prompt"].strip(), payload=payload)


def _lcb_problem(benchmark: str, index: int, row: dict) -> Problem:
    payload: dict[str, Any] = {
        "starter_code": row["starter_code"],
        "public": row["public_test_cases"],
        "private": row["private_test_cases"],  # decoded by the grader alone
        "function": json.loads(row["metadata"]).get("func_name") or "",
    }
    return Problem(benchmark, str(row["question_id"]), row["question_content"], payload=payload)


_CONVERTERS = {
    "gsm8k": _gsm8k_problem,
    "minerva_math": _minerva_problem,
    "olympiadbench": _olympiad_problem,
    "humaneval_plus": _evalplus_problem,
    "mbpp_plus": _evalplus_problem,
    "livecodebench": _lcb_problem,
}
