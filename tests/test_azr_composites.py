"""Composite tasks: the rules for programs, and when proposers get helpers."""

import numpy as np
import pytest

from azr_overrides.config import compose
from azr_overrides.tasks.composites import CompositeSchedule, composite_fault, helper_sources
from azr_overrides.tasks.types import Task, TaskKind


def task(number, composites=()):
    program = f"def f(x):\n    return x + {number}"
    return Task(str(number), TaskKind.CODE_O, program, ("1",), (str(1 + number),), composites=composites)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        ("def f(a):\n    return g_0(a)", None),
        ("def f(a):\n    return g_0(3)", None),
        ("def f(*rest):\n    return g_0(*rest)", None),
        ("def f(a):\n    return g_0(undefined)", "neither a parameter nor a variable"),
        ("def f(a):\n    return a", "never calls g_0"),
        ("g_0 = 3\ndef f(a):\n    return g_0(a)", "redefines g_0"),
        ("x = 1", "no top-level function f"),
        ("def f(", "not a Python program"),
    ],
)
def test_faults_say_what_is_wrong(program, fault):
    found = composite_fault(program, 1)
    assert found is None if fault is None else fault in found


def test_helpers_are_renamed_by_their_place():
    assert helper_sources([task(0), task(1)]) == (
        "def g_0(x):\n    return x + 0",
        "def g_1(x):\n    return x + 1",
    )


def test_no_helpers_before_the_start_or_by_default():
    rng = np.random.default_rng(0)
    references = [task(n) for n in range(6)]
    assert CompositeSchedule().draw(1000, references, rng) == ()
    schedule = CompositeSchedule(start_step=5, chance=1.0, n_min=1, n_max=2)
    assert schedule.draw(4, references, rng) == ()
    assert len(schedule.draw(5, references, rng)) == 1
    assert schedule.draw(5, references[:2], rng) == (), "more references than helpers are needed"


def test_composites_are_never_helpers_and_draws_repeat_by_seed():
    references = [task(0, ("def g_0(x): ...",)), *(task(n) for n in range(1, 6))]
    schedule = CompositeSchedule(start_step=1, chance=0.5, n_min=2, n_max=2)
    draws = [schedule.draw(1, references, np.random.default_rng(seed)) for seed in range(40)]
    assert draws == [schedule.draw(1, references, np.random.default_rng(seed)) for seed in range(40)]
    assert {len(draw) for draw in draws} == {0, 2}
    assert all(not chosen.composites for draw in draws for chosen in draw)


def test_the_schedule_grows_to_its_limits():
    schedule = CompositeSchedule(start_step=1, chance=0.5, n_min=0, n_max=0, grows=True)
    assert schedule.at(100) == (0, 0.5)
    assert schedule.at(101) == (1, 0.51)
    assert schedule.at(10_000) == (3, 0.8)


def test_the_schedule_is_configured_by_azrs_keys():
    prefix = "azr.data_selection_strategy"
    config = compose([f"{prefix}.composite_start_step=7", f"{prefix}.composite_function_n_max=2"])
    schedule = CompositeSchedule.from_config(config.azr.data_selection_strategy)
    assert (schedule.start_step, schedule.n_max, schedule.chance, schedule.grows) == (7, 2, 0.5, False)
