"""What running proposals, verification and attempts without barriers saves: ``python -m tests.benchmarks.overlap``.

The real episode code with the real sandbox. Only the language model is a stand-in: it answers with prepared text after
the time that a completion of a long-tailed length takes, for at most ``--slots`` completions at once. Each step is run
twice with the same texts and lengths: as it is, and with barriers that make it three phases one after the other
(propose everything, verify everything, attempt everything). Prints one JSON object:

- ``ratio``: wall-clock of a step without / with barriers, median over the steps.
"""

import argparse
import asyncio
import json
import os
import random
import time
from dataclasses import replace
from statistics import median
from typing import Any

from azr_overrides.config import compose
from azr_overrides.episode import Episode, EpisodePlan, Generation, Message, Player, Rules
from azr_overrides.sandbox import Sandbox
from azr_overrides.settings import build_rules, sandbox_config
from azr_overrides.tasks.types import Rejection, Task, TaskKind
from azr_overrides.tasks.verification import Verifier

EPISODES, PROPOSALS, ATTEMPTS = 16, 4, 4
TEACHER, STUDENT = Player("teacher1", 1), Player("student1", 2)
OPERATIONS = ("x + {}", "x * {}", "[x, {}]", "str(x) + '{}'", "divmod(x + {}, 7)", "sorted([x, {}, 3])")


class Gate:
    """Lets everybody through once ``count`` have arrived."""

    def __init__(self, count: int) -> None:
        self._missing = count
        self._open = asyncio.Event()

    async def arrive(self) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._open.set()
        await self._open.wait()


class StandIn:
    """A policy whose completions take time and no computation.

    Lengths are log-normal with median 1 and sigma 1 (the longest of a hundred is about ten times the median), which
    is how lengths of reasoning completions spread.

    Args:
        gate: what proposals wait at; None for no barrier.
    """

    def __init__(self, slots: int, unit: float, gate: Gate | None) -> None:
        self._slots, self._unit, self._gate = asyncio.Semaphore(slots), unit, gate

    async def __call__(
        self, adapter_id: int, messages: list[Message], seed: int, max_prompt: int | None = None
    ) -> Generation:
        rng = random.Random(seed)
        length = rng.lognormvariate(0.0, 1.0)
        proposes = adapter_id == TEACHER.adapter_id
        async with self._slots:
            await asyncio.sleep(self._unit * length)
        if proposes and self._gate:
            await self._gate.arrive()
        text = _proposal(rng) if proposes else _answer(f"```output\n{rng.randrange(9)}\n```")
        return Generation(text, tokens=round(100 * length), version=0, sample=None)


class GatedVerifier(Verifier):
    """The real verifier, whose verdicts on proposals are held back until all are there."""

    def __init__(self, verifier: Verifier, gate: Gate) -> None:
        vars(self).update(vars(verifier))
        self._gate = gate

    async def validate(self, *args: Any, **kwargs: Any) -> Task | Rejection:
        verdict = await super().validate(*args, **kwargs)
        await self._gate.arrive()
        return verdict


def _answer(text: str) -> str:
    return f"<think>\n</think>\n<answer>\n{text}\n</answer>"


def _proposal(rng: random.Random) -> str:
    body = rng.choice(OPERATIONS).format(rng.randrange(2, 10**6))
    return _answer(f"```python\ndef f(x):\n    return {body}\n```\n```input\n{rng.randrange(100)}\n```")


def plans(step: int) -> list[EpisodePlan]:
    return [
        EpisodePlan(
            episode=f"s{step}e{number}",
            step=step,
            seed=1000 * step + number,
            kind=TaskKind.CODE_O,
            students=(STUDENT,),
            attempts=ATTEMPTS,
            teacher=TEACHER,
            proposals=PROPOSALS,
        )
        for number in range(EPISODES)
    ]


async def run_step(step: int, rules: Rules, slots: int, unit: float, barriers: bool) -> tuple[float, int]:
    """Wall-clock seconds and rows of a step."""
    gate = None
    if barriers:
        gate = Gate(EPISODES * PROPOSALS)
        rules = replace(rules, verifier=GatedVerifier(rules.verifier, Gate(EPISODES * PROPOSALS)))
    policy = StandIn(slots, unit, gate)
    started = time.perf_counter()
    results = await asyncio.gather(*(Episode(plan, rules, policy).run() for plan in plans(step)))
    return time.perf_counter() - started, sum(len(result.rows) for result in results)


async def measure(steps: int, slots: int, unit: float) -> dict[str, Any]:
    config = compose(["device=cpu", "population=1t1s"])
    samples: list[tuple[float, float, int]] = []
    async with Sandbox(sandbox_config(config)) as sandbox:
        rules = build_rules(config, sandbox)
        for step in range(steps + 1):
            phases, rows = await run_step(step, rules, slots, unit, barriers=True)
            episodes, same = await run_step(step, rules, slots, unit, barriers=False)
            assert rows == same
            if step:  # the first one warms the sandbox up
                samples.append((episodes, phases, rows))
    ratios = [episodes / phases for episodes, phases, _ in samples]
    return {
        "ratio": round(median(ratios), 3),
        "ratios": [round(min(ratios), 3), round(max(ratios), 3)],
        "seconds": {
            "episodes": round(median(episodes for episodes, _, _ in samples), 2),
            "phases": round(median(phases for _, phases, _ in samples), 2),
        },
        "rows": median(rows for _, _, rows in samples),
        "steps": steps,
        "slots": slots,
        "load_average": round(os.getloadavg()[0], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.overlap", description=__doc__)
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--slots", type=int, default=1024, help="completions at once, vLLM's max_num_seqs on a GPU")
    parser.add_argument("--unit", type=float, default=0.5, help="seconds that a completion of median length takes")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(measure(options.steps, options.slots, options.unit))))


if __name__ == "__main__":
    main()
