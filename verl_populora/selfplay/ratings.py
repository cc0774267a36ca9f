"""Ratings of teachers and students: who is expected to win, and what a match teaches about it.

A match is one teacher's tasks of a step against its student. Its outcome is continuous (the student's solve rate),
and it is judged against expectation: solving more than expected is a win, even at a low solve rate.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import trueskill

from verl_populora.extensions import installed_part

ENTRY_POINT_GROUP = "verl_populora.ratings"
"""Installed packages add rating models by an entry point of this group that loads a ``RatingModel`` factory."""


@dataclass(frozen=True, slots=True)
class Rating:
    """A Gaussian belief about strength; ``sigma`` is 0 for models that keep no uncertainty."""

    mu: float
    sigma: float


@dataclass(frozen=True, slots=True)
class MatchObservation:
    """What was seen of one match."""

    solve_rate: float | None  # mean accuracy of the judged attempts in [0, 1]; None without any
    valid_tasks: int  # tasks that verification accepted
    attempts: int  # judged attempts at them


class MatchResult(StrEnum):
    """From the student's side."""

    WIN = "win"  # solved more than expected, or the teacher offered no valid task
    DRAW = "draw"  # as expected
    LOSS = "loss"
    VOID = "void"  # too few judged attempts to say anything; no rating moves


class RatingUpdate(NamedTuple):
    """Both ratings after a match, and how the match was read."""

    teacher: Rating
    student: Rating
    result: MatchResult
    expected: float  # the student's win probability before the match


class RatingModel(ABC):
    """The interface: subclass it, implement four methods and hand it to ``register_rating_model``.

    ``min_attempts`` is the evidence that a match with valid tasks must bring before ratings move.
    """

    def __init__(self, min_attempts: int = 1):
        if min_attempts < 1:
            raise ValueError(f"min_attempts must be at least 1, not {min_attempts}")
        self.min_attempts = min_attempts

    @abstractmethod
    def initial(self) -> Rating:
        """The rating of a founder or a newborn child."""

    @abstractmethod
    def win_probability(self, student: Rating, teacher: Rating) -> float:
        """The probability in [0, 1] that the student wins, which is also the expected solve rate."""

    @abstractmethod
    def judge(self, expected: float, solve_rate: float) -> MatchResult:
        """Win, draw or loss of the student, given its expected and its observed solve rate."""

    @abstractmethod
    def rate(
        self, teacher: Rating, student: Rating, result: MatchResult, score: float, expected: float
    ) -> tuple[Rating, Rating]:
        """New (teacher, student) ratings after ``result``; ``score`` is the observed solve rate in [0, 1]."""

    def fitness(self, rating: Rating, k: float = 3.0) -> float:
        """The conservative rating ``mu - k sigma``: strength that is almost certainly there."""
        return rating.mu - k * rating.sigma

    def update(self, teacher: Rating, student: Rating, observation: MatchObservation) -> RatingUpdate:
        """Both ratings after one match.

        A match without a valid task is a student's win with score 1: the teacher failed at its part. Raises
        ``ValueError`` for a solve rate outside [0, 1] or one that is missing although attempts were judged.
        """
        expected = self.win_probability(student, teacher)
        if observation.valid_tasks == 0:
            result, score = MatchResult.WIN, 1.0
        elif observation.attempts < self.min_attempts:
            return RatingUpdate(teacher, student, MatchResult.VOID, expected)
        else:
            score = _checked_solve_rate(observation)
            result = self.judge(expected, score)
        new_teacher, new_student = self.rate(teacher, student, result, score, expected)
        return RatingUpdate(new_teacher, new_student, result, expected)


class GaussianModel(RatingModel):
    """A belief ``N(mu, sigma^2)`` about every member's strength; a subclass says how a match between two moves it.

    The win probability is ``Phi((mu_s - mu_t) / sqrt(2 beta^2 + sigma_s^2 + sigma_t^2))``. A solve rate within
    ``draw_probability / 2`` of it is a draw: that is the band of outcomes which TrueSkill itself calls a draw between
    equals.
    """

    # Beyond this gap, in standard deviations of the performance difference, an upset carries no more information than
    # at it: the update saturates, and the libraries' tail formulas, which lose all digits or overflow there, are not
    # reached.
    _MAX_GAP = 4.0

    def __init__(
        self,
        mu: float = 25.0,
        sigma: float = 25.0 / 3.0,
        beta: float = 25.0 / 6.0,
        tau: float = 25.0 / 300.0,
        draw_probability: float = 0.1,
        min_attempts: int = 1,
    ):
        super().__init__(min_attempts)
        for name, value in (("sigma", sigma), ("beta", beta)):
            if not value > 0.0:
                raise ValueError(f"{name} must be positive, not {value}")
        if tau < 0.0:
            raise ValueError(f"tau must not be negative, got {tau}")
        if not 0.0 < draw_probability < 1.0:
            raise ValueError(f"draw_probability must lie between 0 and 1, not {draw_probability}")
        self.beta, self.tau, self.draw_probability = beta, tau, draw_probability
        self._initial = Rating(mu, sigma)

    def initial(self) -> Rating:
        return self._initial

    def win_probability(self, student: Rating, teacher: Rating) -> float:
        return 0.5 * math.erfc((teacher.mu - student.mu) / self._spread(teacher, student) / math.sqrt(2.0))

    def judge(self, expected: float, solve_rate: float) -> MatchResult:
        if abs(solve_rate - expected) <= self.draw_probability / 2:
            return MatchResult.DRAW
        return MatchResult.WIN if solve_rate > expected else MatchResult.LOSS

    def rate(
        self, teacher: Rating, student: Rating, result: MatchResult, score: float, expected: float
    ) -> tuple[Rating, Rating]:
        limit = self._MAX_GAP * self._spread(teacher, student)
        gap = min(limit, max(-limit, student.mu - teacher.mu))
        # Updates depend on the means only through their difference, so they may be taken at a shifted mean.
        shifted, origin = Rating(gap, student.sigma), Rating(0.0, teacher.sigma)
        if result is MatchResult.LOSS:
            new_teacher, new_student = self._play(origin, shifted, drawn=False)
        else:
            new_student, new_teacher = self._play(shifted, origin, drawn=result is MatchResult.DRAW)
        return (
            Rating(teacher.mu + new_teacher.mu, new_teacher.sigma),
            Rating(student.mu + new_student.mu - gap, new_student.sigma),
        )

    @abstractmethod
    def _play(self, first: Rating, second: Rating, drawn: bool) -> tuple[Rating, Rating]:
        """Both ratings after ``first`` beat ``second``, or drew with it."""

    def _spread(self, teacher: Rating, student: Rating) -> float:
        """Standard deviation of the difference of the two performances."""
        return (2 * self.beta**2 + student.sigma**2 + teacher.sigma**2) ** 0.5


class TrueSkillModel(GaussianModel):
    """TrueSkill (Herbrich, Minka and Graepel 2006) by the library ``trueskill``."""

    def __init__(self, **params: float):
        super().__init__(**params)  # pyright: ignore[reportArgumentType]
        mu, sigma = self._initial.mu, self._initial.sigma
        self._environment = trueskill.TrueSkill(mu, sigma, self.beta, self.tau, self.draw_probability)

    def _play(self, first: Rating, second: Rating, drawn: bool) -> tuple[Rating, Rating]:
        rated = trueskill.rate_1vs1(
            self._environment.create_rating(first.mu, first.sigma),
            self._environment.create_rating(second.mu, second.sigma),
            drawn=drawn,
            env=self._environment,
        )
        return Rating(rated[0].mu, rated[0].sigma), Rating(rated[1].mu, rated[1].sigma)


class OpenSkillModel(GaussianModel):
    """The Bayesian approximation of Weng and Lin (2011), Plackett-Luce variant, by the library ``openskill``.

    ``openskill`` is optional: it is imported when the model is made, and ``ValueError`` says how to install it.
    """

    def __init__(self, **params: float):
        super().__init__(**params)  # pyright: ignore[reportArgumentType]
        try:
            from openskill.models import PlackettLuce
        except ImportError as error:
            raise ValueError(
                "the rating model 'openskill' needs the package openskill, which is not installed: "
                "`pip install openskill==6.2.0`, or choose another population.rating.name"
            ) from error
        self._library = PlackettLuce(self._initial.mu, self._initial.sigma, self.beta, tau=self.tau)

    def _play(self, first: Rating, second: Rating, drawn: bool) -> tuple[Rating, Rating]:
        teams = [[self._library.rating(one.mu, one.sigma)] for one in (first, second)]
        (one,), (other,) = self._library.rate(teams, ranks=[1.0, 1.0 if drawn else 2.0])
        return Rating(one.mu, one.sigma), Rating(other.mu, other.sigma)


class EloModel(RatingModel):
    """Elo with a continuous score: ``mu += k (solve_rate - expected)``; no uncertainty, so fitness is ``mu``.

    ``expected = 1 / (1 + 10 ** ((mu_t - mu_s) / scale))``; the sum of both ratings is constant.
    """

    def __init__(
        self,
        mu: float = 1000.0,
        k: float = 32.0,
        scale: float = 400.0,
        draw_margin: float = 0.05,
        min_attempts: int = 1,
    ):
        super().__init__(min_attempts)
        for name, value in (("k", k), ("scale", scale)):
            if not value > 0.0:
                raise ValueError(f"{name} must be positive, not {value}")
        if not 0.0 <= draw_margin < 1.0:
            raise ValueError(f"draw_margin must be in [0, 1), not {draw_margin}")
        self._mu, self._k, self._scale, self._draw_margin = mu, k, scale, draw_margin

    def initial(self) -> Rating:
        return Rating(self._mu, 0.0)

    def win_probability(self, student: Rating, teacher: Rating) -> float:
        # The exponent is bounded so that absurd gaps give probability 0 or 1 rather than an overflow.
        exponent = min(300.0, max(-300.0, (teacher.mu - student.mu) / self._scale))
        return 1.0 / (1.0 + 10.0**exponent)

    def judge(self, expected: float, solve_rate: float) -> MatchResult:
        if abs(solve_rate - expected) <= self._draw_margin:
            return MatchResult.DRAW
        return MatchResult.WIN if solve_rate > expected else MatchResult.LOSS

    def rate(
        self, teacher: Rating, student: Rating, result: MatchResult, score: float, expected: float
    ) -> tuple[Rating, Rating]:
        change = self._k * (score - expected)
        return Rating(teacher.mu - change, 0.0), Rating(student.mu + change, 0.0)


_RATING_MODELS: dict[str, Callable[..., RatingModel]] = {
    "trueskill": TrueSkillModel,
    "openskill": OpenSkillModel,
    "elo": EloModel,
}


def register_rating_model(name: str, factory: Callable[..., RatingModel]) -> None:
    """Make ``factory(**params)`` available to ``make_rating_model`` and to configuration files under ``name``."""
    if name in _RATING_MODELS:
        raise ValueError(f"there is a rating model {name!r} already; choose another name")
    _RATING_MODELS[name] = factory


def make_rating_model(name: str, **params: Any) -> RatingModel:
    """The rating model registered as ``name``, here or by an installed package, built with its own parameters."""
    factory = _RATING_MODELS.get(name) or installed_part(ENTRY_POINT_GROUP, name)
    if factory is None:
        raise ValueError(f"unknown rating model {name!r}; choose one of {', '.join(sorted(_RATING_MODELS))}")
    try:
        return factory(**params)
    except TypeError as error:
        raise ValueError(f"rating model {name!r} does not take these parameters: {error}") from error


def _checked_solve_rate(observation: MatchObservation) -> float:
    rate = observation.solve_rate
    if rate is None or not 0.0 <= rate <= 1.0:
        raise ValueError(
            f"a match with {observation.attempts} judged attempts has solve rate {rate}; expected one in [0, 1]"
        )
    return rate
