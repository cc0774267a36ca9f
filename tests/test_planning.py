import numpy as np

from azr_overrides.buffers import TaskBuffers
from azr_overrides.planning import Planner
from azr_overrides.seeding import identity_task
from azr_overrides.sizes import StepSizes
from azr_overrides.tasks.composites import CompositeSchedule
from azr_overrides.tasks.types import Task, TaskKind
from verl_populora.layout import PopulationLayout
from verl_populora.population import Population, PopulationRules

KINDS = (TaskKind.CODE_O, TaskKind.CODE_I, TaskKind.CODE_F)


def buffers():
    programs = [
        Task(f"t{i}", TaskKind.CODE_O, f"def f(x):\n    return x + {i}", ("1",), (str(1 + i),)) for i in range(9)
    ]
    return TaskBuffers.seeded([*map(identity_task, KINDS), *programs])


def planner(sizes, **changes):
    arguments = {
        "kinds": KINDS,
        "references": 2,
        "composites": CompositeSchedule(),
        "solver_only_steps": -1,
        "buffers": buffers(),
        "rng": np.random.default_rng(0),
        "seed": 5,
    }
    return Planner(sizes, **{**arguments, **changes})


POPULATION = Population(PopulationLayout.build(2, 2), PopulationRules(), seed=1)
SIZES = StepSizes(proposals_per_teacher=8, proposals_per_prompt=4, attempts=3, solver_tasks=0)
SINGLE = StepSizes(proposals_per_teacher=6, proposals_per_prompt=1, attempts=3, solver_tasks=9)


def test_every_match_gets_its_prompts():
    matches = POPULATION.make_matches(1)
    plans = planner(SIZES).population_step(1, matches, POPULATION.members)
    assert len(plans) == 2 * 2
    assert len({plan.episode for plan in plans}) == len(plans)
    for plan, match in zip(plans, [m for m in matches for _ in range(2)], strict=True):
        assert plan.teacher is not None
        assert (plan.teacher.name, *(student.name for student in plan.students)) == (match.teacher, match.student)
        assert (plan.proposals, plan.attempts, plan.train_attempts) == (4, 3, True)


def test_a_teachers_tasks_go_to_all_its_students():
    population = Population(PopulationLayout.build(2, 3), PopulationRules(students_per_task=2), seed=1)
    matches = population.make_matches(1)
    plans = planner(SIZES).population_step(1, matches, population.members)
    assert len(plans) == 2 * 2
    for plan in plans:
        assert plan.teacher is not None
        expected = [match.student for match in matches if match.teacher == plan.teacher.name]
        assert [student.name for student in plan.students] == expected and len(expected) == 2


def test_few_prompts_a_step_still_cover_all_kinds():
    one = planner(SIZES)
    kinds = {
        p.kind for step in (1, 2) for p in one.population_step(step, POPULATION.make_matches(step), POPULATION.members)
    }
    assert kinds == set(KINDS)


def test_a_code_f_proposer_sees_one_program_and_others_the_configured_number():
    plans = planner(SINGLE).single_step(1, POPULATION.members["teacher1"])
    shown = {plan.kind: len(plan.references) for plan in plans if plan.task is None}
    assert shown == {TaskKind.CODE_O: 2, TaskKind.CODE_I: 1, TaskKind.CODE_F: 1}  # one code_i seed exists


def test_the_single_agent_proposes_and_solves_what_is_in_the_buffers():
    plans = planner(SINGLE).single_step(1, POPULATION.members["teacher1"])
    proposing, solving = [p for p in plans if p.task is None], [p for p in plans if p.task is not None]
    assert len(proposing) == 6 and len(solving) == 9
    assert all((p.teacher,) == p.students and not p.train_attempts for p in proposing)
    assert all(p.attempts == 1 and p.teacher is None for p in solving)


def test_the_single_agent_can_begin_by_solving_only():
    plans = planner(SINGLE, solver_only_steps=3).single_step(3, POPULATION.members["teacher1"])
    assert all(plan.task is not None for plan in plans)
    assert any(
        p.task is None for p in planner(SINGLE, solver_only_steps=3).single_step(4, POPULATION.members["teacher1"])
    )


def test_composite_helpers_are_drawn_for_programs_only():
    schedule = CompositeSchedule(start_step=1, chance=1.0, n_min=1, n_max=1)
    plans = planner(SINGLE, composites=schedule, references=3).single_step(2, POPULATION.members["teacher1"])
    helpers = {plan.kind: len(plan.composites) for plan in plans if plan.task is None}
    assert helpers[TaskKind.CODE_O] == 1 and helpers[TaskKind.CODE_F] == 0


def test_one_seed_gives_one_plan():
    assert planner(SINGLE).single_step(1, POPULATION.members["teacher1"]) == planner(SINGLE).single_step(
        1, POPULATION.members["teacher1"]
    )
