"""The shipped checkpoint of the tiny base."""

import asyncio
import hashlib
from statistics import fmean

import pytest

from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.tasks.types import Outcome, Task, TaskKind
from azr_overrides.tasks.verification import Verifier
from recipes.tiny_base.documents import PROMPTS_FILE, output_question, prompt
from recipes.tiny_base.evaluate import Bench, input_rates, proposal_rates, solving_rates
from recipes.tiny_base.generator import statement_count
from recipes.tiny_base.heldout import load_heldout
from recipes.tiny_base.sampler import Sampler

FOLDER = PROMPTS_FILE.parent
MODEL = FOLDER / "model"


@pytest.fixture(scope="module")
def sampler():
    return Sampler(MODEL, seed=1)


def on_bench(sampler, measure):
    """Runs ``await measure(bench)`` with the sandbox of a run."""

    async def run():
        async with Sandbox(SandboxConfig(min_isolation="rlimits", cpu_s=2, wall_s=2)) as sandbox:
            return await measure(Bench(sampler, Verifier(sandbox)))

    return asyncio.run(run())


def test_the_card_names_the_shipped_weights():
    weights = (MODEL / "model.safetensors").read_bytes()
    assert len(weights) <= 8_000_000
    assert hashlib.sha256(weights).hexdigest() in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_it_proposes_mostly_valid_and_distinct_tasks(sampler):
    async def measure(bench):
        free = await bench.propose(TaskKind.CODE_O, [None], 48)
        program = next(task for task in load_heldout() if statement_count(task.program) == 2)
        return free, await bench.propose(TaskKind.CODE_F, [program], 24)

    free, inputs = on_bench(sampler, measure)
    rates = proposal_rates(free)
    assert rates["well_formed"] > 0.9
    assert rates["valid"] > 0.5
    assert rates["distinct_tasks"] > 0.9
    assert input_rates(inputs)["valid"] > 0.6


def test_it_solves_short_tasks_sometimes_and_longer_ones_less_often(sampler):
    tasks = [task for task in load_heldout() if task.kind is TaskKind.CODE_O]
    short = [task for task in tasks if statement_count(task.program) <= 2]
    long = [task for task in tasks if statement_count(task.program) >= 6]

    async def measure(bench):
        return [solving_rates(await bench.solve(chosen, 2))["solve_rate"] for chosen in (short, long)]

    on_short, on_long = on_bench(sampler, measure)
    assert on_short > 0.45
    assert 0.05 < on_long < min(0.6, on_short)  # room to climb


def test_greedy_answers_do_not_depend_on_the_batch(sampler):
    """Left padding and the removal of finished rows leave every completion as it is alone."""
    program = "def f(a):\n    return a + {}"
    questions = [output_question(program.format(number), str(number * 3)) for number in range(9)]
    prompts = [prompt(question) for question in questions]
    together = sampler.sample(prompts, 1, 60, temperature=0)
    assert together == [sampler.sample([text], 1, 60, temperature=0)[0] for text in prompts]


def test_rates_count_what_they_say(sampler):
    task = Task("id", TaskKind.CODE_O, "def f(a):\n    return a", ("1",), ("1",))

    async def measure(bench):
        return await bench.solve([task] * 6, 4)

    verdicts = on_bench(sampler, measure)
    solved = [[verdict.outcome is Outcome.CORRECT for verdict in attempts] for attempts in verdicts]
    rates = solving_rates(verdicts)
    assert rates["tasks"] == 6
    assert rates["solve_rate"] == pytest.approx(fmean(fmean(attempts) for attempts in solved))
    assert rates["mixed"] == pytest.approx(fmean(any(a) and not all(a) for a in solved))
