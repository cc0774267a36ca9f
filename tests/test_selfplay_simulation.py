"""Matchmaking, ratings and selection together, on synthetic players whose strength is known."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from verl_populora.selfplay.matchmaking import make_matchmaker
from verl_populora.selfplay.ratings import MatchObservation, MatchResult, Rating, make_rating_model
from verl_populora.selfplay.selection import Contender, make_selection

STRENGTH = {
    **{f"teacher{i}": value for i, value in enumerate((0.2, -1.0, 1.5, -0.4))},
    **{f"student{i}": value for i, value in enumerate((0.9, -1.6, 0.1, 1.8))},
}
TEACHERS = [name for name in STRENGTH if name.startswith("teacher")]
STUDENTS = [name for name in STRENGTH if name.startswith("student")]
ATTEMPTS = 32


def solve_probability(teacher: str, student: str) -> float:
    return 1 / (1 + math.exp(STRENGTH[teacher] - STRENGTH[student]))


def play(rating_model: str, matchmaker: str, steps: int, seed: int, balanced: bool = True):
    """Ratings after ``steps`` steps, and the pairs of all steps."""
    rng = np.random.default_rng(seed)
    model, pairing = make_rating_model(rating_model), make_matchmaker(matchmaker, balanced=balanced)
    ratings: dict[str, Rating] = {name: model.initial() for name in STRENGTH}
    pairs = []
    for step in range(steps):
        matches = pairing.pair(
            TEACHERS,
            STUDENTS,
            lambda teacher, student: model.win_probability(ratings[student], ratings[teacher]),
            rng,
            step,
        )
        for match in matches:
            solved = rng.binomial(ATTEMPTS, solve_probability(match.teacher, match.student))
            update = model.update(
                ratings[match.teacher],
                ratings[match.student],
                MatchObservation(solved / ATTEMPTS, valid_tasks=4, attempts=ATTEMPTS),
            )
            ratings[match.teacher], ratings[match.student] = update.teacher, update.student
            assert update.result is not MatchResult.VOID
            pairs.append((match.teacher, match.student))
    return ratings, pairs


def order(names, key) -> list[str]:
    return sorted(names, key=key, reverse=True)


@pytest.mark.parametrize("rating_model", ["trueskill", "openskill", "elo"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ratings_recover_the_order_of_strengths_in_each_role(rating_model, seed):
    # Matches of unequal opponents keep all members comparable, so that the order is a matter of evidence alone.
    ratings, _ = play(rating_model, "uniform", steps=150, seed=seed)
    for role in (TEACHERS, STUDENTS):
        assert order(role, lambda name: ratings[name].mu) == order(role, STRENGTH.__getitem__)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_pfsp_concentrates_on_pairs_that_are_near_balance(seed):
    def preference(matchmaker: str) -> float:
        """How often an even pair meets for every time that a lopsided one does, once ratings have settled."""
        _, pairs = play("trueskill", matchmaker, steps=400, seed=seed, balanced=False)
        met = Counter(pairs[len(pairs) // 4 :])
        even, lopsided = [], []
        for pair in itertools.product(TEACHERS, STUDENTS):
            imbalance = abs(solve_probability(*pair) - 0.5)
            if imbalance < 0.2 or imbalance > 0.35:
                (even if imbalance < 0.2 else lopsided).append(met[pair])
        return float(np.mean(even) / np.mean(lopsided))

    assert 0.75 < preference("uniform") < 1.33
    assert preference("pfsp") > 1.5


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_truncation_replaces_the_weakest_member_of_each_role(seed):
    ratings, _ = play("trueskill", "uniform", steps=150, seed=seed)
    model, selection = make_rating_model("trueskill"), make_selection("truncation", fraction=0.25)
    for role in (TEACHERS, STUDENTS):
        contenders = [Contender(name, model.fitness(ratings[name]), age=150) for name in role]
        selected = selection.select(contenders, np.random.default_rng(seed))
        assert selected.replaced == (min(role, key=STRENGTH.__getitem__),)


def test_the_whole_game_is_reproduced_by_its_seed():
    assert play("trueskill", "pfsp", 20, seed=5) == play("trueskill", "pfsp", 20, seed=5)
