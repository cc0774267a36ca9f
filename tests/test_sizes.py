import pytest
from omegaconf import OmegaConf

from azr_overrides.sizes import step_sizes


def config(**population):
    base = {
        "teachers": 2,
        "students": 2,
        "budget": "per_adapter",
        "proposals_per_teacher": None,
        "proposals_per_prompt": 4,
        "attempts": None,
        "students_per_task": 1,
    }
    return OmegaConf.create(
        {
            "data": {"train_batch_size": 8},
            "azr": {
                "problem_types": ["code_o", "code_i", "code_f"],
                "reward": {"n_samples": 8},
                "data_selection_strategy": {"data_len": None},
            },
            "population": base | population,
        }
    )


def test_the_single_agent_has_azrs_counts():
    sizes = step_sizes(config(teachers=0, students=0))
    assert (sizes.proposals_per_teacher, sizes.solver_tasks) == (24, 24)
    assert (sizes.proposals_per_prompt, sizes.attempts) == (1, 8)


@pytest.mark.parametrize(("teachers", "students"), [(1, 1), (2, 2), (4, 4), (3, 5)])
@pytest.mark.parametrize("budget", ["per_adapter", "total"])
def test_a_population_generates_what_its_budget_says(teachers, students, budget):
    single = step_sizes(config(teachers=0, students=0))
    generated = single.proposals_per_teacher * (1 + single.attempts) + single.solver_tasks
    allowed = generated * (teachers + students) if budget == "per_adapter" else generated
    sizes = step_sizes(config(teachers=teachers, students=students, budget=budget))
    made = teachers * sizes.proposals_per_teacher * (1 + sizes.attempts)
    rounding = teachers * sizes.proposals_per_prompt * (1 + sizes.attempts) / 2
    assert abs(made - allowed) <= rounding
    assert sizes.proposals_per_teacher % sizes.proposals_per_prompt == 0


def test_explicit_counts_win():
    sizes = step_sizes(config(proposals_per_teacher=12, attempts=3))
    assert (sizes.proposals_per_teacher, sizes.prompts_per_teacher, sizes.attempts) == (12, 3, 3)


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"budget": "half"}, "population.budget"),
        ({"attempts": 0}, "population.attempts"),
        ({"proposals_per_prompt": 1}, "population.proposals_per_prompt"),
        ({"proposals_per_teacher": 1}, "population.proposals_per_teacher"),
    ],
)
def test_impossible_counts_name_their_key(changes, key):
    with pytest.raises(ValueError, match=key):
        step_sizes(config(**changes))


def test_too_small_a_shared_budget_is_refused():
    small = config(teachers=8, students=8, budget="total")
    small.data.train_batch_size = 2
    with pytest.raises(ValueError, match=r"data\.train_batch_size"):
        step_sizes(small)


def test_every_students_attempts_count():
    one, two = (step_sizes(config(students_per_task=count, proposals_per_prompt=2)) for count in (1, 2))
    assert one.proposals_per_teacher * (1 + 8) == pytest.approx(two.proposals_per_teacher * (1 + 16), rel=0.05)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="1 to 2 different students"):
            step_sizes(config(students_per_task=wrong))
