"""What a match teaches about both players."""

import math
import sys

import pytest
import trueskill
from hypothesis import given, settings
from hypothesis import strategies as st
from openskill.models import PlackettLuce

from verl_populora.selfplay.ratings import (
    MatchObservation,
    MatchResult,
    Rating,
    RatingModel,
    make_rating_model,
    register_rating_model,
)

ratings = st.builds(Rating, st.floats(-60.0, 110.0), st.floats(0.05, 8.4))


def observed(solve_rate, valid_tasks=4, attempts=16) -> MatchObservation:
    return MatchObservation(solve_rate, valid_tasks, attempts)


def test_trueskill_starts_with_the_papers_constants():
    rating = make_rating_model("trueskill").initial()
    assert rating == Rating(25.0, 25.0 / 3.0)
    assert make_rating_model("trueskill").fitness(rating) == pytest.approx(0.0)


@given(ratings, ratings)
def test_win_probabilities_of_trueskill_are_the_normal_integral(student, teacher):
    spread = math.sqrt(2 * (25 / 6) ** 2 + student.sigma**2 + teacher.sigma**2)
    expected = 0.5 * (1 + math.erf((student.mu - teacher.mu) / spread / math.sqrt(2)))
    assert make_rating_model("trueskill").win_probability(student, teacher) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("result", ["win", "draw", "loss"])
@given(student=ratings, teacher=ratings)
@settings(max_examples=50, deadline=None)
def test_updates_are_the_librarys_wherever_it_is_in_its_range(result, student, teacher):
    model = make_rating_model("trueskill")
    if abs(student.mu - teacher.mu) > 3.5 * math.hypot(2**0.5 * 25 / 6, student.sigma, teacher.sigma):
        return
    environment = trueskill.TrueSkill(draw_probability=0.1)
    players = [environment.create_rating(one.mu, one.sigma) for one in (student, teacher)]
    first, second = players if result != "loss" else reversed(players)
    rated = list(trueskill.rate_1vs1(first, second, drawn=result == "draw", env=environment))
    if result == "loss":
        rated.reverse()
    new_teacher, new_student = model.rate(teacher, student, MatchResult(result), 0.5, 0.5)
    assert (new_student.mu, new_student.sigma) == pytest.approx((rated[0].mu, rated[0].sigma), abs=1e-6)
    assert (new_teacher.mu, new_teacher.sigma) == pytest.approx((rated[1].mu, rated[1].sigma), abs=1e-6)


@pytest.mark.parametrize("name", ["trueskill", "openskill", "elo"])
@given(
    gap=st.sampled_from([0.0, 5.0, 40.0, 1e3, 1e6]),
    sigmas=st.tuples(*[st.sampled_from([1e-6, 0.1, 1.0, 25 / 3])] * 2),
    student_is_better=st.booleans(),
    solve_rate=st.floats(0.0, 1.0),
)
@settings(max_examples=150, deadline=None)
def test_no_gap_and_no_outcome_breaks_the_arithmetic(name, gap, sigmas, student_is_better, solve_rate):
    model = make_rating_model(name)
    teacher, student = Rating(25.0, sigmas[0]), Rating(25.0 + (gap if student_is_better else -gap), sigmas[1])
    update = model.update(teacher, student, observed(solve_rate))
    for one in (update.teacher, update.student):
        assert math.isfinite(one.mu) and math.isfinite(one.sigma) and one.sigma >= 0
    assert 0.0 <= update.expected <= 1.0
    if update.result is MatchResult.WIN:
        assert update.student.mu >= student.mu and update.teacher.mu <= teacher.mu
    if update.result is MatchResult.LOSS:
        assert update.student.mu <= student.mu and update.teacher.mu >= teacher.mu


@pytest.mark.parametrize(("solve_rate", "result"), [(0.56, "win"), (0.54, "draw"), (0.46, "draw"), (0.44, "loss")])
def test_a_solve_rate_is_judged_against_the_expected_one(solve_rate, result):
    model = make_rating_model("trueskill")
    update = model.update(model.initial(), model.initial(), observed(solve_rate))
    assert update.expected == pytest.approx(0.5)
    assert update.result == result
    assert update == (update.teacher, update.student, update.result, update.expected)


def test_a_weak_student_wins_with_a_low_solve_rate_against_a_strong_teacher():
    model = make_rating_model("trueskill")
    teacher, student = Rating(35.0, 1.0), Rating(20.0, 1.0)
    update = model.update(teacher, student, observed(0.1))
    assert update.expected < 0.05
    assert update.result is MatchResult.WIN and update.student.mu > student.mu


def test_a_match_without_a_valid_task_is_a_students_win():
    model = make_rating_model("trueskill")
    update = model.update(model.initial(), model.initial(), MatchObservation(None, 0, 0))
    assert update.result is MatchResult.WIN
    assert update.student.mu > 25.0 > update.teacher.mu


def test_too_little_evidence_moves_nothing():
    model = make_rating_model("trueskill", min_attempts=8)
    teacher, student = model.initial(), Rating(30.0, 2.0)
    update = model.update(teacher, student, observed(0.0, attempts=7))
    assert update.result is MatchResult.VOID
    assert (update.teacher, update.student) == (teacher, student)
    assert model.update(teacher, student, observed(0.0, attempts=8)).result is MatchResult.LOSS
    assert model.update(teacher, student, MatchObservation(None, 3, 0)).result is MatchResult.VOID


def test_elo_moves_by_the_surprise_and_keeps_the_sum():
    model = make_rating_model("elo", k=40.0)
    update = model.update(Rating(1100.0, 0.0), Rating(1000.0, 0.0), observed(0.8))
    expected = 1 / (1 + 10**0.25)
    assert update.expected == pytest.approx(expected)
    assert update.student.mu == pytest.approx(1000 + 40 * (0.8 - expected))
    assert update.student.mu + update.teacher.mu == pytest.approx(2100.0)
    assert model.fitness(update.student) == update.student.mu


@pytest.mark.parametrize("solve_rate", [None, -0.1, 1.5, float("nan")])
def test_an_impossible_solve_rate_is_refused(solve_rate):
    model = make_rating_model("trueskill")
    with pytest.raises(ValueError, match="solve rate"):
        model.update(model.initial(), model.initial(), observed(solve_rate))


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("trueskill", {"draw_probability": 1.0}, "draw_probability"),
        ("trueskill", {"beta": 0.0}, "beta"),
        ("elo", {"k": -1.0}, "k must be positive"),
        ("elo", {"min_attempts": 0}, "min_attempts"),
        ("glicko", {}, "unknown rating model"),
        ("elo", {"beta": 1.0}, "does not take these parameters"),
    ],
)
def test_bad_settings_are_refused(name, params, message):
    with pytest.raises(ValueError, match=message):
        make_rating_model(name, **params)


def test_openskill_moves_ratings_as_the_library_does_and_expects_what_it_predicts():
    model, library = make_rating_model("openskill"), PlackettLuce(tau=25 / 300)
    teacher, student = Rating(22.0, 3.0), Rating(27.0, 5.0)
    teams = [[library.rating(27.0, 5.0)], [library.rating(22.0, 3.0)]]
    assert model.win_probability(student, teacher) == pytest.approx(library.predict_win(teams)[0], abs=1e-6)
    for result, ranks in (
        (MatchResult.WIN, [1.0, 2.0]),
        (MatchResult.DRAW, [1.0, 1.0]),
        (MatchResult.LOSS, [2.0, 1.0]),
    ):
        (expected_student,), (expected_teacher,) = library.rate(teams, ranks=ranks)
        new_teacher, new_student = model.rate(teacher, student, result, 0.5, 0.5)
        assert (new_student.mu, new_student.sigma) == pytest.approx((expected_student.mu, expected_student.sigma))
        assert (new_teacher.mu, new_teacher.sigma) == pytest.approx((expected_teacher.mu, expected_teacher.sigma))


def test_a_missing_openskill_is_named_with_the_way_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "openskill.models", None)
    with pytest.raises(ValueError, match="pip install openskill"):
        make_rating_model("openskill")


def test_a_rating_model_of_ones_own_is_used_by_name(monkeypatch):
    monkeypatch.setattr("verl_populora.selfplay.ratings._RATING_MODELS", {})

    class Wins(RatingModel):
        def initial(self):
            return Rating(0.0, 0.0)

        def win_probability(self, student, teacher):
            return 0.5

        def judge(self, expected, solve_rate):
            return MatchResult.WIN if solve_rate > expected else MatchResult.LOSS

        def rate(self, teacher, student, result, score, expected):
            return teacher, Rating(student.mu + (result is MatchResult.WIN), 0.0)

    register_rating_model("wins", Wins)
    model = make_rating_model("wins")
    assert model.update(model.initial(), model.initial(), observed(0.9)).student.mu == 1.0
    with pytest.raises(ValueError, match="already"):
        register_rating_model("wins", Wins)
