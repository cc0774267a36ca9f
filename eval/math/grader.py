"""Grading many mathematics answers in worker processes that are killed at a time limit.

Workers come from a fork server that has imported the grader once, so replacing a killed one is cheap.
"""

import multiprocessing
from collections.abc import Iterable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass

from pebble import ProcessExpired, ProcessPool

from eval.extract import final_answer
from eval.types import Profile, Status

FIXED_TIME_LIMIT_S = 15.0
PARITY_TIME_LIMIT_S = 3.0  # as published
_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True, slots=True)
class MathItem:
    """One completion to grade."""

    key: str
    benchmark: str
    question: str
    gold: str
    text: str  # the completion
    template: str  # name of the prompt template, on which the published extraction depends


@dataclass(frozen=True, slots=True)
class MathVerdict:
    key: str
    status: Status
    extracted: str
    detail: str = ""


def extract_answer(item: MathItem, profile: Profile) -> str:
    """The answer text that is graded; "" if there is none."""
    if profile is Profile.PARITY:
        from eval.math import parity

        return parity.extract(item.text, item.template)
    return final_answer(item.text) or ""


def judge(benchmark: str, question: str, gold: str, answer: str, profile: Profile) -> bool:
    """Runs in a worker: no time limit of its own."""
    if profile is Profile.PARITY:
        from eval.math import parity

        return parity.equivalent(gold, answer, benchmark)
    from eval.math.equivalence import equivalent

    return equivalent(gold, answer, question)


def _limit_memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def grade_math(
    items: Iterable[MathItem], profile: Profile, workers: int, time_limit_s: float | None = None
) -> Iterator[MathVerdict]:
    """Verdicts in the order of ``items``. An item without an answer costs no worker time."""
    if time_limit_s is None:
        time_limit_s = PARITY_TIME_LIMIT_S if profile is Profile.PARITY else FIXED_TIME_LIMIT_S
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["eval.math.equivalence", "eval.math.parity"])
    with ProcessPool(max_workers=workers, initializer=_limit_memory, context=context) as pool:
        pending = []
        for item in items:
            answer = extract_answer(item, profile)
            arguments = [item.benchmark, item.question, item.gold, answer, profile]
            future = pool.schedule(judge, args=arguments, timeout=time_limit_s) if answer else None
            pending.append((item, answer, future))
        for item, answer, future in pending:
            if future is None:
                yield MathVerdict(item.key, Status.NO_ANSWER, "")
                continue
            try:
                status = Status.CORRECT if future.result() else Status.WRONG
                detail = ""
            except FutureTimeout:
                status, detail = Status.TIMEOUT, f"grader stopped after {time_limit_s:g} s"
            except ProcessExpired as error:
                status, detail = Status.ERROR, f"grader process died: {error}"
            except Exception as error:  # whatever sympy raises about one answer must not end the run
                status, detail = Status.ERROR, f"{type(error).__name__}: {str(error)[:200]}"
            yield MathVerdict(item.key, status, answer, detail)
