"""Who plays whom."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_populora.selfplay.matchmaking import (
    Match,
    Matchmaker,
    PfspMatchmaker,
    WeightedMatchmaker,
    make_matchmaker,
    register_matchmaker,
)

NAMES = ("pfsp", "uniform", "hardest", "round_robin")


def players(teachers: int, students: int) -> tuple[list[str], list[str]]:
    return [f"teacher{i}" for i in range(teachers)], [f"student{i}" for i in range(students)]


def by_table(table) -> Callable[[str, str], float]:
    return lambda teacher, student: float(table[int(teacher[7:])][int(student[7:])])


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(NAMES), st.integers(1, 9), st.integers(1, 9), st.integers(0, 10_000))
def test_every_teacher_gets_one_student_and_loads_differ_by_at_most_one(name, teachers, students, seed):
    rng = np.random.default_rng(seed)
    teacher_names, student_names = players(teachers, students)
    table = rng.random((teachers, students))
    matches = make_matchmaker(name).pair(teacher_names, student_names, by_table(table), rng, step=seed)
    assert [match.teacher for match in matches] == teacher_names
    load = Counter(dict.fromkeys(student_names, 0))
    load.update(match.student for match in matches)
    assert max(load.values()) - min(load.values()) <= 1
    assert all(0.0 < match.probability <= 1.0 for match in matches)


@pytest.mark.parametrize("name", NAMES)
def test_equal_random_states_give_equal_pairs(name):
    teachers, students = players(6, 4)
    table = np.random.default_rng(0).random((6, 4))
    pairs = [
        make_matchmaker(name).pair(teachers, students, by_table(table), np.random.default_rng(3), 2) for _ in range(2)
    ]
    assert pairs[0] == pairs[1]


@pytest.mark.parametrize(
    ("name", "params", "weight"),
    [
        ("pfsp", {}, lambda p: p * (1 - p)),
        ("pfsp", {"power": 2.0}, lambda p: (p * (1 - p)) ** 2),
        ("hardest", {"power": 3.0}, lambda p: p**3),
        ("uniform", {}, lambda p: np.ones_like(p)),
    ],
)
def test_pairs_are_drawn_with_the_weights_of_their_win_probabilities(name, params, weight):
    teachers, students = players(1, 4)
    table = np.array([[0.05, 0.3, 0.5, 0.9]])
    matchmaker = make_matchmaker(name, balanced=False, **params)
    rng = np.random.default_rng(0)
    expected = weight(table[0]) / weight(table[0]).sum()
    counts = Counter()
    for step in range(4000):
        (match,) = matchmaker.pair(teachers, students, by_table(table), rng, step)
        assert match.probability == pytest.approx(expected[int(match.student[7:])])
        counts[match.student] += 1
    for index, student in enumerate(students):
        deviation = (expected[index] * (1 - expected[index]) / 4000) ** 0.5
        assert abs(counts[student] / 4000 - expected[index]) < 5 * deviation
    assert isinstance(matchmaker, WeightedMatchmaker)
    assert matchmaker.probabilities(teachers, students, by_table(table))[0] == pytest.approx(expected)


def test_free_load_lets_all_teachers_choose_the_same_student():
    teachers, students = players(4, 4)
    table = [[0.0, 0.0, 0.5, 1.0]] * 4
    matches = make_matchmaker("pfsp", balanced=False).pair(
        teachers, students, by_table(table), np.random.default_rng(0), 1
    )
    assert {match.student for match in matches} == {"student2"}
    assert all(match.probability == 1.0 for match in matches)


def test_hopeless_pairs_are_drawn_uniformly_rather_than_not_at_all():
    teachers, students = players(1, 4)
    rng = np.random.default_rng(0)
    seen = {make_matchmaker("pfsp").pair(teachers, students, lambda t, s: 0.0, rng, 1)[0].student for _ in range(100)}
    assert seen == set(students)


def test_round_robin_meets_everyone_once_in_a_cycle():
    teachers, students = players(3, 4)
    met = {
        (match.teacher, match.student)
        for step in range(4)
        for match in make_matchmaker("round_robin").pair(
            teachers, students, lambda t, s: 0.5, np.random.default_rng(0), step
        )
    }
    assert len(met) == 12


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_win_probability_outside_its_range_is_refused(probability):
    teachers, students = players(2, 2)
    with pytest.raises(ValueError, match="student0 against teacher0"):
        PfspMatchmaker().pair(teachers, students, lambda t, s: probability, np.random.default_rng(0), 1)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="no student"):
        make_matchmaker("uniform").pair(["teacher0"], [], lambda t, s: 0.5, np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match="listed twice"):
        make_matchmaker("uniform").pair(["a", "a"], ["b"], lambda t, s: 0.5, np.random.default_rng(0), 1)
    with pytest.raises(ValueError, match="unknown matchmaker 'swiss'"):
        make_matchmaker("swiss")
    with pytest.raises(ValueError, match="does not take these parameters"):
        make_matchmaker("uniform", power=2.0)
    with pytest.raises(ValueError, match="power must be positive"):
        make_matchmaker("pfsp", power=0.0)


def test_a_matchmaker_of_ones_own_is_used_by_name(monkeypatch):
    monkeypatch.setattr("verl_populora.selfplay.matchmaking._MATCHMAKERS", {})

    class First(Matchmaker):
        def pair(self, teachers, students, win_probability, rng, step):
            return [Match(teacher, students[0], 1.0) for teacher in teachers]

    register_matchmaker("first", First)
    matches = make_matchmaker("first").pair(["t"], ["s", "u"], lambda t, s: 0.5, np.random.default_rng(0), 1)
    assert matches == [Match("t", "s", 1.0)]
    with pytest.raises(ValueError, match="already"):
        register_matchmaker("first", First)
