"""Who makes room and who may be a parent."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_populora.selfplay.ratings import Rating
from verl_populora.selfplay.selection import (
    Contender,
    TruncationSelection,
    make_fitness,
    make_selection,
    ranked,
    register_selection,
)


def group(*fitness: float, ages: tuple[int, ...] | None = None) -> list[Contender]:
    ages = ages or (10,) * len(fitness)
    return [Contender(f"student{i}", value, age) for i, (value, age) in enumerate(zip(fitness, ages, strict=True))]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_truncation_replaces_the_bottom_fraction_worst_first():
    selected = make_selection("truncation", fraction=0.25).select(group(5, 1, 8, 2, 7, 6, 4, 3), rng())
    assert selected.replaced == ("student1", "student3")
    assert [one.seat for one in selected.survivors] == [f"student{i}" for i in (2, 4, 5, 0, 6, 7)]


@pytest.mark.parametrize(("size", "count"), [(1, 0), (2, 1), (3, 1), (4, 1), (6, 2), (8, 2), (16, 4)])
def test_a_quarter_of_a_group_is_replaced_but_at_least_one(size, count):
    assert len(make_selection("truncation").select(group(*range(size)), rng()).replaced) == count


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["truncation", "tournament"]),
    st.lists(st.tuples(st.floats(-100, 100), st.integers(0, 30)), min_size=1, max_size=12),
    st.floats(0.05, 0.95),
    st.integers(1, 4),
    st.integers(0, 20),
    st.integers(0, 1000),
)
def test_the_elite_and_the_young_are_never_replaced(name, values, fraction, elitism, min_age, seed):
    contenders = group(*(value for value, _ in values), ages=tuple(age for _, age in values))
    operator = make_selection(name, fraction=fraction, elitism=elitism, min_age=min_age)
    selected = operator.select(contenders, rng(seed))
    mature = ranked([one for one in contenders if one.age >= min_age])
    survivors = {one.seat for one in selected.survivors}
    assert survivors | set(selected.replaced) == {one.seat for one in mature}
    assert not survivors & set(selected.replaced)
    assert {one.seat for one in mature[:elitism]} <= survivors
    assert list(selected.survivors) == ranked(selected.survivors)
    assert len(set(selected.replaced)) == len(selected.replaced) <= max(1, round(fraction * len(values)))
    assert not selected.replaced or selected.survivors


@pytest.mark.parametrize("name", ["truncation", "tournament"])
def test_selection_does_not_depend_on_the_order_of_contenders(name):
    contenders = group(3, 3, 1, 2, 3, 1)
    operator = make_selection(name, fraction=0.5)
    assert operator.select(contenders, rng(4)) == operator.select(contenders[::-1], rng(4))


def test_ties_go_to_the_older_member():
    contenders = [Contender("a", 1.0, 3), Contender("b", 1.0, 9), Contender("c", 5.0, 1)]
    assert make_selection("truncation").select(contenders, rng()).replaced == ("a",)


def test_parents_are_distinct_and_the_fittest_comes_first():
    operator = make_selection("truncation")
    survivors = ranked(group(*range(6)))
    order = [one.seat for one in survivors]
    for seed in range(50):
        first, second = operator.parents(survivors, 2, rng(seed))
        assert order.index(first) < order.index(second)


def test_parents_are_uniform_or_weighted_by_rank():
    survivors = ranked(group(1, 2, 3))
    for choice, expected in (("uniform", (1 / 3, 1 / 3, 1 / 3)), ("rank", (3 / 6, 2 / 6, 1 / 6))):
        operator, stream = TruncationSelection(parent_choice=choice), rng()
        counts = Counter(operator.parents(survivors, 1, stream)[0] for _ in range(6000))
        for one, share in zip(survivors, expected, strict=True):
            assert abs(counts[one.seat] / 6000 - share) < 0.03


def test_tournaments_favour_the_fit_as_parents_and_the_unfit_as_losers():
    operator, stream = make_selection("tournament", fraction=0.2, size=3), rng()
    contenders = group(*range(10))
    losers = Counter(seat for _ in range(3000) for seat in operator.select(contenders, stream).replaced)
    parents = Counter(operator.parents(ranked(contenders), 1, stream)[0] for _ in range(3000))
    # The chance that the extreme one of ten enters a tournament of three is 3/10 for a parent; for the first loser it
    # is 3/9, since the elite does not take part.
    assert abs(parents["student9"] / 3000 - 0.3) < 0.04
    assert losers["student0"] > losers["student3"] > losers["student6"]
    assert losers["student9"] == 0


def test_fitness_is_the_conservative_rating_or_the_recent_reward():
    ratings = {"a": Rating(25.0, 8.0), "b": Rating(20.0, 1.0)}
    rewards = {"a": [9.0, 1.0, 3.0], "b": [0.5]}
    assert make_fitness("conservative_rating")(ratings, rewards) == {"a": 1.0, "b": 17.0}
    assert make_fitness("conservative_rating", k=1.0)(ratings, rewards) == {"a": 17.0, "b": 19.0}
    assert make_fitness("mean_reward", window=2)(ratings, rewards) == {"a": 2.0, "b": 0.5}
    with pytest.raises(ValueError, match="no reward recorded yet for b"):
        make_fitness("mean_reward")(ratings, {"a": [1.0]})


@pytest.mark.parametrize("fitness", [float("nan"), float("inf")])
def test_a_fitness_that_is_not_finite_is_refused(fitness):
    with pytest.raises(ValueError, match="fitness of student1"):
        make_selection("truncation").select(group(1.0, fitness), rng())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("truncation", {"fraction": 0.0}, "fraction"),
        ("truncation", {"elitism": 0}, "elitism"),
        ("truncation", {"min_age": -1}, "min_age"),
        ("truncation", {"parent_choice": "best"}, "parent_choice"),
        ("tournament", {"size": 0}, "tournament size"),
        ("roulette", {}, "unknown selection operator"),
        ("truncation", {"size": 2}, "does not take these parameters"),
    ],
)
def test_bad_settings_are_refused(name, params, message):
    with pytest.raises(ValueError, match=message):
        make_selection(name, **params)


def test_a_selection_operator_of_ones_own_is_used_by_name(monkeypatch):
    monkeypatch.setattr("verl_populora.selfplay.selection._SELECTIONS", {})
    register_selection("half", lambda: TruncationSelection(fraction=0.5))
    assert len(make_selection("half").select(group(1, 2, 3, 4), rng()).replaced) == 2
    with pytest.raises(ValueError, match="already"):
        register_selection("half", TruncationSelection)
