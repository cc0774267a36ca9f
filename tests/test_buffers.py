"""Task buffers: sampling, limits, duplicates, resume."""

import json
from collections import Counter

import numpy as np
import pytest

from azr_overrides.buffers import BufferOptions, TaskBuffers
from azr_overrides.config import compose
from azr_overrides.tasks.types import Task, TaskKind

KIND = TaskKind.CODE_I


def task(name, step=0, kind=KIND, value="1"):
    return Task(f"{kind}:{name}", kind, f"def f(a):\n    return a  # {name}", (value,), (value,), step=step)


def filled(options=None, old=20, new=5, step=3):
    buffers = TaskBuffers.seeded([task(f"old{n}") for n in range(old)], options)
    for n in range(new):
        buffers.add(task(f"new{n}", step))
    return buffers


def rng(seed=0):
    return np.random.default_rng(seed)


def test_a_task_is_stored_once_even_after_it_was_dropped():
    buffers = TaskBuffers(BufferOptions(max_tasks=2))
    assert [buffers.add(task(n)) for n in (0, 1, 1, 2, 0)] == [True, True, False, True, False]
    assert [t.task_id for t in buffers.tasks(KIND)] == ["code_i:1", "code_i:2"]
    assert buffers.contains("code_i:0") and not buffers.contains("code_i:9")
    assert buffers.counters["input"]["int"]["1"] == 3, "a refused task is not counted"


def test_the_newest_tasks_are_kept_and_counted_as_new():
    buffers = TaskBuffers(BufferOptions(max_tasks=3))
    for step in range(6):
        buffers.add(task(step, step))
    assert [t.step for t in buffers.tasks(KIND)] == [3, 4, 5]
    assert len(buffers.recent(KIND, 5)) == 2


def test_limits_and_buffers_are_by_kind():
    buffers = TaskBuffers(BufferOptions(max_tasks=1))
    buffers.add(task(0, kind=TaskKind.CODE_O))
    buffers.add(task(0, kind=TaskKind.CODE_E))
    assert len(buffers.tasks(TaskKind.CODE_O)) == len(buffers.tasks(TaskKind.CODE_E)) == 1


def test_references_are_different_tasks_and_as_many_as_there_are():
    buffers = filled()
    assert len({t.task_id for t in buffers.references(KIND, 6, rng())}) == 6
    assert len(buffers.references(KIND, 100, rng())) == 25
    assert buffers.references(KIND, 0, rng()) == []
    assert buffers.references(TaskKind.CODE_E, 6, rng()) == []


def test_induction_references_come_from_the_other_kinds():
    buffers = TaskBuffers.seeded([task(0, kind=TaskKind.CODE_O), task(1), task(2, kind=TaskKind.CODE_F)])
    chosen = {buffers.references(TaskKind.CODE_F, 1, rng(seed))[0].kind for seed in range(20)}
    assert chosen == {TaskKind.CODE_O, TaskKind.CODE_I}


def test_recent_references_are_preferred_on_request():
    steps = {}
    for strategy in ("uniform", "step"):
        buffers = filled(BufferOptions(references=strategy), old=10, new=10, step=99)
        drawn = [t.step for seed in range(200) for t in buffers.references(KIND, 1, rng(seed))]
        steps[strategy] = Counter(drawn)[99] / 200
    assert 0.35 < steps["uniform"] < 0.65
    assert steps["step"] > 0.95


@pytest.mark.parametrize(("mix", "new"), [("max_new", 5), ("half_new", 4), ("uniform_total", 0)])
def test_the_mix_decides_how_many_new_tasks_are_sure_to_be_taken(mix, new):
    buffers = filled(BufferOptions(mix=mix), old=1000)
    chosen = buffers.solver_tasks(KIND, 8, step=4, rng=rng())
    assert len(chosen) == 8
    assert sum(t.step == 3 for t in chosen) == new


def test_what_is_new_ends_with_the_window():
    buffers = filled(BufferOptions(window=2), old=1000)
    assert sum(t.step == 3 for t in buffers.solver_tasks(KIND, 8, step=5, rng=rng())) == 5
    assert sum(t.step == 3 for t in buffers.solver_tasks(KIND, 8, step=6, rng=rng())) == 0


def test_more_new_tasks_than_wanted_are_sampled():
    buffers = filled(new=50)
    chosen = buffers.solver_tasks(KIND, 8, step=3, rng=rng())
    assert {t.step for t in chosen} == {3} and len({t.task_id for t in chosen}) == 8


def test_tasks_by_step_are_drawn_with_replacement_and_never_seeds():
    buffers = filled(BufferOptions(mix="step"), new=2)
    chosen = buffers.solver_tasks(KIND, 30, step=9, rng=rng())
    assert len(chosen) == 30 and {t.step for t in chosen} == {3}
    seeds_only = TaskBuffers.seeded([task(0)], BufferOptions(mix="step"))
    assert len(seeds_only.solver_tasks(KIND, 3, step=1, rng=rng())) == 3


def test_a_short_buffer_is_repeated_and_an_empty_one_gives_nothing():
    buffers = TaskBuffers.seeded([task(0), task(1)])
    chosen = buffers.solver_tasks(KIND, 9, step=50, rng=rng())
    assert len(chosen) == 9 and {t.task_id for t in chosen} == {"code_i:0", "code_i:1"}
    assert buffers.solver_tasks(TaskKind.CODE_E, 9, step=0, rng=rng()) == []


def test_a_resumed_buffer_draws_what_the_uninterrupted_one_would_have():
    buffers = filled(BufferOptions(max_tasks=10))
    state = json.loads(json.dumps(buffers.state_dict()))
    resumed = TaskBuffers(buffers.options)
    resumed.add(task("from before the resume"))
    resumed.load_state_dict(state)
    assert resumed.state_dict() == buffers.state_dict()
    assert resumed.tasks(KIND) == buffers.tasks(KIND)
    assert not resumed.add(task("old0")), "dropped before the checkpoint"
    assert resumed.references(KIND, 6, rng(3)) == buffers.references(KIND, 6, rng(3))
    assert resumed.solver_tasks(KIND, 6, 4, rng(3)) == buffers.solver_tasks(KIND, 6, 4, rng(3))


def test_types_are_counted_by_label():
    buffers = TaskBuffers()
    buffers.add(task(0, value="1, 'a'"))
    buffers.add(Task("e", TaskKind.CODE_E, "def f(a): ...", ("1",), ("ValueError",)))
    metrics = buffers.counters.metrics()
    assert metrics["types/input_types/distinct_types"] == 2
    assert metrics["types/input_types/tuple/total_count"] == 1
    assert metrics["types/output_types/total_instances"] == 1
    assert metrics["types/error_types/total_unique_values"] == 1


def test_options_come_from_azrs_keys():
    config = compose(["azr.pred_data_mix_strategy=half_new", "azr.data_selection_strategy.update_iteration=3"])
    assert BufferOptions.from_config(config) == BufferOptions(mix="half_new", window=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mix": "newest"}, "pred_data_mix_strategy"),
        ({"references": "x"}, "uniform, step"),
        ({"max_tasks": 0}, "positive"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BufferOptions(**options)
