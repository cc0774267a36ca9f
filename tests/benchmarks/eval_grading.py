"""How long the answers of one model to MATH-500 take to grade, on two workers.

``python -m tests.benchmarks.eval_grading`` prints one JSON object: ``share_of_minute`` is the time divided by 60 s.
"""

import json
import sys
import time
from collections import Counter

from eval.data.loaders import load_problems
from eval.data.registry import BENCHMARKS
from eval.math.grader import MathItem, grade_math
from eval.types import Profile
from tests.eval_support import BENCHMARK_DATA


def answers() -> list[MathItem]:
    """Right answers written differently from the gold, and as many answers to another problem."""
    problems = load_problems(BENCHMARKS["math500"], [BENCHMARK_DATA / "math500.jsonl"])
    items = []
    for index, problem in enumerate(problems):
        gold = problem.gold if index % 2 else problems[index - 1].gold
        rewritten = gold.replace("\\frac", "\\dfrac").replace("+", " + ").replace(",", ", ")
        text = f"Step by step.\nSo the result is $1 \\cdot ({rewritten})$, that is \\boxed{{0 + {rewritten}}}."
        items.append(MathItem(str(index), "math500", problem.question, problem.gold, text, "math-base"))
    return items


def main() -> None:
    if not (BENCHMARK_DATA / "math500.jsonl").exists():
        sys.exit(f"no benchmark data in {BENCHMARK_DATA}; set POPULORA_EVAL_DATA")
    items = answers()
    started = time.perf_counter()
    statuses = Counter(verdict.status.value for verdict in grade_math(items, Profile.FIXED, workers=2))
    seconds = time.perf_counter() - started
    print(json.dumps({"items": len(items), "statuses": dict(statuses), "share_of_minute": round(seconds / 60, 3)}))


if __name__ == "__main__":
    main()
