"""Guess rates: how often an answer that ignores a task's input is right."""

import asyncio
from typing import Any

import pytest

from azr_overrides.config import compose
from azr_overrides.prepare import ConfigError, prepare
from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.sandbox.template.arguments import parse_arguments
from azr_overrides.tasks.guessing import GuessRule, commonest_share, varied_inputs
from azr_overrides.tasks.types import Candidate, Task, TaskKind
from azr_overrides.tasks.values import parse_value
from azr_overrides.tasks.verification import Verifier
from tests.test_episode import Script, answer, proposal, rewards, run


def arguments(text) -> tuple[Any, ...]:
    values: Any = parse_value(f"({text},)")
    return values


INPUT = "3, [1, 20, 7], 'abc', -2.5, {'k': (True, None)}"


def shape(value):
    """The types of a value, whatever its numbers, characters and lengths."""
    if isinstance(value, tuple | list):
        return type(value), {shape(item) for item in value} if isinstance(value, list) else ()
    return (dict, tuple(value)) if isinstance(value, dict) else type(value)


def test_varied_inputs_are_other_inputs_of_the_same_types():
    varied = varied_inputs(INPUT, 8, "seed")
    own = arguments(INPUT)
    assert len(set(varied)) == 8 and INPUT not in varied
    for text in varied:
        parse_arguments(text)
        values = arguments(text)
        assert [shape(value) for value in values] == [shape(value) for value in own]
        assert values[0] >= 0 and values[3] < 0 and abs(len(values[1]) - 3) <= 1


def test_varied_inputs_depend_on_the_seed_only():
    assert varied_inputs(INPUT, 5, "a") == varied_inputs(INPUT, 5, "a") != varied_inputs(INPUT, 5, "b")


def test_lengths_vary_too():
    assert len({len(arguments(text)[0]) for text in varied_inputs("[5, 6, 7]", 16, "s")}) == 3


@pytest.mark.parametrize("text", ["", "[]", "None", "''", "range(3)", "x=3", "[i for i in (1, 2)]"])
def test_what_is_no_list_of_literals_or_cannot_vary_has_no_variations(text):
    assert varied_inputs(text, 8, "s") == ()


def test_few_possible_variations_are_enough():
    assert varied_inputs("True", 8, "s") == ("False",)


def test_a_constant_scores_what_the_hidden_outputs_share_with_the_commonest_shown_one():
    assert commonest_share(["1", "2", "2"], ["2", "3", "2", "2"]) == 0.75
    assert commonest_share(["1", "2"], ["1", "2"]) == 0.5
    assert commonest_share([], ["1"]) == commonest_share(["1"], []) == 0.0


def guess_rates(*tasks, variations=24):
    async def go():
        async with Sandbox(SandboxConfig(cpu_s=2, wall_s=2)) as sandbox:
            verifier = Verifier(sandbox)
            rates = []
            for kind, body, inputs in tasks:
                candidate = Candidate(kind, f"def f(x):\n    {body}", inputs)
                task = await verifier.validate(candidate)
                assert isinstance(task, Task), task
                rates.append(await verifier.guess_rate(task, variations))
            return rates

    return asyncio.run(go())


def test_guess_rates_tell_tasks_that_need_their_input_from_those_that_do_not():
    constant, remainder, total, length, failing, induction = guess_rates(
        (TaskKind.CODE_O, "return 7", ("[3, 4]",)),
        (TaskKind.CODE_I, "return x % 3", ("40",)),
        (TaskKind.CODE_O, "return sum(x)", ("[3, 40, 8]",)),
        (TaskKind.CODE_O, "return len(x)", ("[3, 40, 8]",)),
        (TaskKind.CODE_O, "return [1][x]", ("0",)),
        (TaskKind.CODE_F, "return x > 4", ("1", "2", "3", "9")),
    )
    assert constant == 1.0
    assert 0.1 < remainder < 0.6
    assert total < 0.1
    assert 0.1 < length < 0.6
    assert failing == 0.0  # calls that raise do not return the same
    assert induction == 0.5  # False for both shown pairs and one of two hidden ones


def test_guess_rates_of_exceptions_count_their_names():
    (rate,) = guess_rates((TaskKind.CODE_E, "return 1 // 0 if x else 1 // 0", ("3",)))
    assert rate == 1.0


def test_a_task_without_literal_inputs_has_no_guess_rate():
    assert guess_rates((TaskKind.CODE_O, "return len(x)", ("range(3)",))) == [None]


def test_a_guessable_task_earns_less():
    half = [answer("```output\n6\n```"), answer("```output\n7\n```")]
    rule = GuessRule(variations=8, discount=1.0)
    needed = run(Script(teacher=[proposal("return x * 2")], student=list(half)), guessing=rule)
    (record,) = needed.records
    assert record["guess_rate"] == 0.0 and rewards(needed, "propose") == [0.5]
    constant = run(Script(teacher=[proposal("return 6")], student=list(half)), guessing=rule)
    assert constant.records[0]["guess_rate"] == 1.0 and rewards(constant, "propose") == [0.0]
    measured = run(Script(teacher=[proposal("return 6")], student=list(half)), guessing=GuessRule(variations=8))
    assert measured.records[0]["guess_rate"] == 1.0 and rewards(measured, "propose") == [0.5]
    plain = run(Script(teacher=[proposal("return 6")], student=list(half)))
    assert plain.records[0]["guess_rate"] is None and rewards(plain, "propose") == [0.5]


def test_nobody_gains_by_the_discount():
    rule = GuessRule(variations=8, discount=0.5)
    assert rule.discounted(0.8, 0.5) == pytest.approx(0.6)
    assert rule.discounted(-1.0, 1.0) == -1.0 and rule.discounted(0.0, 1.0) == 0.0 and rule.discounted(0.8, None) == 0.8


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["variations=-1"], "must not be negative"),
        (["variations=8", "discount=1.5"], r"in \[0, 1\]"),
        (["discount=0.5"], "set population.guessing.variations"),
    ],
)
def test_impossible_settings_are_refused_before_anything_starts(overrides, message):
    with pytest.raises(ConfigError, match=message):
        prepare(compose([f"population.guessing.{text}" for text in overrides]))
