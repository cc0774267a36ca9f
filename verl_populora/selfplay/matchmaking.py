"""Who plays whom: every teacher gets one student for the step.

A matchmaker turns the rating model's win probabilities into pairs. Prioritised fictitious self-play (PFSP, Vinyals et
al. 2019) draws an opponent with a weight ``f(p)`` of the probability that the student wins; ``f(p) = p (1 - p)``
prefers balanced pairs, where both sides have most to learn.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_populora.extensions import installed_part

ENTRY_POINT_GROUP = "verl_populora.matchmakers"
"""Installed packages add matchmakers by an entry point of this group that loads a ``Matchmaker`` factory."""

WinProbability = Callable[[str, str], float]
"""``(teacher, student) -> `` probability in [0, 1] that the student wins."""


@dataclass(frozen=True, slots=True)
class Match:
    """One pair of a step."""

    teacher: str
    student: str
    probability: float  # with which the pair was drawn, given the draws before it in the same step; in (0, 1]


class Matchmaker(ABC):
    """The interface: subclass it, implement ``pair`` and hand it to ``register_matchmaker``."""

    @abstractmethod
    def pair(
        self,
        teachers: Sequence[str],
        students: Sequence[str],
        win_probability: WinProbability,
        rng: np.random.Generator,
        step: int,
    ) -> list[Match]:
        """One match for each teacher, in the order of ``teachers``.

        Raises ``ValueError`` when there is no student or a win probability lies outside [0, 1].
        """


class WeightedMatchmaker(Matchmaker):
    """Draws every teacher's student with a probability proportional to ``weights`` of the win probabilities.

    ``balanced`` spreads the load: student loads differ by at most one. Teachers then draw in random order from the
    students that still have room, so that no seat has first choice by its name. Without it draws are independent.
    """

    def __init__(self, balanced: bool = True):
        self.balanced = balanced

    @abstractmethod
    def weights(self, probabilities: np.ndarray) -> np.ndarray:
        """Unnormalised weights >= 0 of win probabilities, elementwise; any shape."""

    def probabilities(
        self, teachers: Sequence[str], students: Sequence[str], win_probability: WinProbability
    ) -> np.ndarray:
        """Pairing probabilities before load balancing, (teachers, students); rows sum to 1."""
        weights = self.weights(_win_table(teachers, students, win_probability))
        return np.stack([_normalised(row) for row in weights])

    def pair(
        self,
        teachers: Sequence[str],
        students: Sequence[str],
        win_probability: WinProbability,
        rng: np.random.Generator,
        step: int,
    ) -> list[Match]:
        _check_players(teachers, students)
        if not teachers:
            return []
        weights = self.weights(_win_table(teachers, students, win_probability))
        load = np.zeros(len(students), dtype=int)
        matches: dict[int, Match] = {}
        for row in rng.permutation(len(teachers)):
            has_room = _has_room(load, len(teachers)) if self.balanced else np.ones(len(students), dtype=bool)
            chances = _normalised(np.where(has_room, weights[row], 0.0), fallback=has_room)
            column = int(rng.choice(len(students), p=chances))
            load[column] += 1
            matches[int(row)] = Match(teachers[int(row)], students[column], float(chances[column]))
        return [matches[row] for row in range(len(teachers))]


class PfspMatchmaker(WeightedMatchmaker):
    """Weight ``(p (1 - p)) ** power``: the closer to even, the likelier the pair."""

    def __init__(self, balanced: bool = True, power: float = 1.0):
        super().__init__(balanced)
        self.power = _positive("power", power)

    def weights(self, probabilities: np.ndarray) -> np.ndarray:
        return (probabilities * (1.0 - probabilities)) ** self.power


class HardestMatchmaker(WeightedMatchmaker):
    """Weight ``p ** power``: teachers meet the students that beat them most often."""

    def __init__(self, balanced: bool = True, power: float = 2.0):
        super().__init__(balanced)
        self.power = _positive("power", power)

    def weights(self, probabilities: np.ndarray) -> np.ndarray:
        return probabilities**self.power


class UniformMatchmaker(WeightedMatchmaker):
    """All students alike, whatever the ratings say."""

    def weights(self, probabilities: np.ndarray) -> np.ndarray:
        return np.ones_like(probabilities)


class RoundRobinMatchmaker(Matchmaker):
    """Teacher ``i`` meets student ``i + step`` (modulo the number of students): nothing is left to chance."""

    def pair(
        self,
        teachers: Sequence[str],
        students: Sequence[str],
        win_probability: WinProbability,
        rng: np.random.Generator,
        step: int,
    ) -> list[Match]:
        _check_players(teachers, students)
        return [Match(teacher, students[(index + step) % len(students)], 1.0) for index, teacher in enumerate(teachers)]


_MATCHMAKERS: dict[str, Callable[..., Matchmaker]] = {
    "pfsp": PfspMatchmaker,
    "uniform": UniformMatchmaker,
    "hardest": HardestMatchmaker,
    "round_robin": RoundRobinMatchmaker,
}


def register_matchmaker(name: str, factory: Callable[..., Matchmaker]) -> None:
    """Make ``factory(**params)`` available to ``make_matchmaker`` and to configuration files under ``name``."""
    if name in _MATCHMAKERS:
        raise ValueError(f"there is a matchmaker {name!r} already; choose another name")
    _MATCHMAKERS[name] = factory


def make_matchmaker(name: str, **params: Any) -> Matchmaker:
    """The matchmaker registered as ``name``, here or by an installed package, built with its own parameters."""
    factory = _MATCHMAKERS.get(name) or installed_part(ENTRY_POINT_GROUP, name)
    if factory is None:
        raise ValueError(f"unknown matchmaker {name!r}; choose one of {', '.join(sorted(_MATCHMAKERS))}")
    try:
        return factory(**params)
    except TypeError as error:
        raise ValueError(f"matchmaker {name!r} does not take these parameters: {error}") from error


def _win_table(teachers: Sequence[str], students: Sequence[str], win_probability: WinProbability) -> np.ndarray:
    table = np.array([[win_probability(teacher, student) for student in students] for teacher in teachers])
    if not np.all((table >= 0.0) & (table <= 1.0)):
        row, column = np.argwhere(~((table >= 0.0) & (table <= 1.0)))[0]
        raise ValueError(
            f"win probability of {students[column]} against {teachers[row]} is {table[row, column]},"
            " which is not in [0, 1]"
        )
    return table


def _has_room(load: np.ndarray, teachers: int) -> np.ndarray:
    """Students that can take one more match such that final loads differ by at most one."""
    base, extra = divmod(teachers, len(load))
    extras_left = extra - int(np.sum(load > base))
    return load < base + (1 if extras_left > 0 else 0)


def _normalised(weights: np.ndarray, fallback: np.ndarray | None = None) -> np.ndarray:
    """Weights as probabilities; where every weight vanishes, uniform over ``fallback`` (default: all)."""
    total = weights.sum()
    if total > 0.0:
        return weights / total
    allowed = np.ones_like(weights) if fallback is None else fallback.astype(float)
    return allowed / allowed.sum()


def _check_players(teachers: Sequence[str], students: Sequence[str]) -> None:
    if not students:
        raise ValueError("no student to pair with: the population needs at least one")
    for role, names in (("teacher", teachers), ("student", students)):
        if len(set(names)) != len(names):
            raise ValueError(f"a {role} is listed twice: {', '.join(names)}")


def _positive(name: str, value: float) -> float:
    if not value > 0.0:
        raise ValueError(f"{name} must be positive, not {value}")
    return float(value)
