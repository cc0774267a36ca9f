"""Fitness and the selection operators: who makes room, and who may be a parent.

Everything here works on one group of contenders that compete for the same seats: one role, as a rule. Ranking is by
fitness, best first; equal fitness is ordered by age (the older first), then by seat, so that it never depends on the
order of a dictionary.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from verl_populora.extensions import installed_part
from verl_populora.selfplay.ratings import Rating

ENTRY_POINT_GROUP = "verl_populora.selections"
"""Installed packages add selection operators by an entry point of this group that loads a factory of one."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A member as selection sees it."""

    seat: str
    fitness: float  # larger is better, finite
    age: int  # steps since birth


@dataclass(frozen=True, slots=True)
class Selected:
    """The outcome of one selection in one group."""

    replaced: tuple[str, ...]  # seats that get a child, worst first
    survivors: tuple[Contender, ...]  # eligible parents, best first; disjoint from ``replaced``


class SelectionOperator(ABC):
    """The interface: subclass it, implement both methods and hand it to ``register_selection``.

    Parameters:
        fraction: share of the group to replace in [0, 1), gamma in the paper; rounded, at least one member.
        elitism: this many of the fittest mature members always survive, >= 1.
        min_age: members younger than this many steps are neither replaced nor parents.
    """

    def __init__(self, fraction: float = 0.25, elitism: int = 1, min_age: int = 0):
        if not 0.0 < fraction < 1.0:
            raise ValueError(f"selection fraction must lie between 0 and 1, not {fraction}")
        if elitism < 1:
            raise ValueError(f"elitism must be at least 1, not {elitism}: a child needs a parent that lives")
        if min_age < 0:
            raise ValueError(f"min_age must not be negative, got {min_age}")
        self.fraction, self.elitism, self.min_age = fraction, elitism, min_age

    def select(self, contenders: Sequence[Contender], rng: np.random.Generator) -> Selected:
        """Who is replaced and who survives; nobody is replaced where that would leave no mature survivor."""
        mature = ranked([contender for contender in contenders if contender.age >= self.min_age])
        expendable = mature[self.elitism :]
        count = min(self.count(len(contenders)), len(expendable))
        replaced = self.losers(expendable, count, rng) if count else ()
        return Selected(replaced, tuple(one for one in mature if one.seat not in replaced))

    def count(self, group_size: int) -> int:
        """How many of a group are replaced at most: the rounded fraction, at least one, none of a group of one."""
        return 0 if group_size < 2 else max(1, round(self.fraction * group_size))

    @abstractmethod
    def losers(self, expendable: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        """``count`` distinct seats out of ``expendable`` (ranked, best first), the worst first."""

    @abstractmethod
    def parents(self, survivors: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        """``count`` distinct seats out of ``survivors`` (ranked, best first), the fittest first."""


class TruncationSelection(SelectionOperator):
    """The bottom fraction goes; parents are drawn among the survivors.

    ``parent_choice``: "uniform", or "rank" for weights falling linearly from the best (n) to the worst (1).
    """

    def __init__(self, fraction: float = 0.25, elitism: int = 1, min_age: int = 0, parent_choice: str = "uniform"):
        super().__init__(fraction, elitism, min_age)
        if parent_choice not in ("uniform", "rank"):
            raise ValueError(f"parent_choice must be 'uniform' or 'rank', not {parent_choice!r}")
        self.parent_choice = parent_choice

    def losers(self, expendable: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        return tuple(one.seat for one in reversed(expendable[len(expendable) - count :]))

    def parents(self, survivors: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        size = len(survivors)
        weights = np.arange(size, 0, -1) if self.parent_choice == "rank" else np.ones(size)
        drawn = rng.choice(size, size=count, replace=False, p=weights / weights.sum())
        return tuple(survivors[index].seat for index in sorted(drawn))


class TournamentSelection(SelectionOperator):
    """Each loser is the worst, each parent the best, of ``size`` contenders drawn without replacement."""

    def __init__(self, fraction: float = 0.25, elitism: int = 1, min_age: int = 0, size: int = 2):
        super().__init__(fraction, elitism, min_age)
        if size < 1:
            raise ValueError(f"tournament size must be at least 1, not {size}")
        self.size = size

    def losers(self, expendable: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        ranks = self._winners(len(expendable), count, rng, best=False)
        return tuple(expendable[rank].seat for rank in sorted(ranks, reverse=True))

    def parents(self, survivors: Sequence[Contender], count: int, rng: np.random.Generator) -> tuple[str, ...]:
        ranks = self._winners(len(survivors), count, rng, best=True)
        return tuple(survivors[rank].seat for rank in sorted(ranks))

    def _winners(self, size: int, count: int, rng: np.random.Generator, best: bool) -> list[int]:
        """Ranks of ``count`` distinct winners; a winner leaves the pool before the next tournament."""
        pool, winners = list(range(size)), []
        for _ in range(count):
            entrants = rng.choice(pool, size=min(self.size, len(pool)), replace=False)
            winners.append(int(min(entrants) if best else max(entrants)))
            pool.remove(winners[-1])
        return winners


def ranked(contenders: Sequence[Contender]) -> list[Contender]:
    """Best first; ties by age (older first), then seat. Raises ``ValueError`` for a fitness that is not finite."""
    for one in contenders:
        if not np.isfinite(one.fitness):
            raise ValueError(f"fitness of {one.seat} is {one.fitness}; it must be a finite number")
    return sorted(contenders, key=lambda one: (-one.fitness, -one.age, one.seat))


class FitnessFunction(Protocol):
    """Maps each seat's rating and its mean rewards of past steps (newest last) to a number, larger is better."""

    def __call__(self, ratings: Mapping[str, Rating], rewards: Mapping[str, Sequence[float]]) -> dict[str, float]: ...


@dataclass(frozen=True, slots=True)
class ConservativeRating:
    """Fitness ``mu - k sigma``."""

    k: float = 3.0

    def __call__(self, ratings: Mapping[str, Rating], rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
        return {seat: rating.mu - self.k * rating.sigma for seat, rating in ratings.items()}


@dataclass(frozen=True, slots=True)
class MeanReward:
    """Fitness = mean reward of the last ``window`` steps; needs no rating, but depends on whom one was paired with.

    Raises ``ValueError`` for a member without any reward yet: protect newborns with ``min_age``.
    """

    window: int = 10

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"window must be at least 1 step, not {self.window}")

    def __call__(self, ratings: Mapping[str, Rating], rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
        missing = sorted(seat for seat in ratings if not rewards.get(seat))
        if missing:
            raise ValueError(f"no reward recorded yet for {', '.join(missing)}: their fitness is unknown")
        return {seat: float(np.mean(rewards[seat][-self.window :])) for seat in ratings}


_SELECTIONS: dict[str, Callable[..., SelectionOperator]] = {
    "truncation": TruncationSelection,
    "tournament": TournamentSelection,
}
_FITNESS: dict[str, Callable[..., FitnessFunction]] = {
    "conservative_rating": ConservativeRating,
    "mean_reward": MeanReward,
}


def register_selection(name: str, factory: Callable[..., SelectionOperator]) -> None:
    """Make ``factory(**params)`` available to ``make_selection`` and to configuration files under ``name``."""
    if name in _SELECTIONS:
        raise ValueError(f"there is a selection operator {name!r} already; choose another name")
    _SELECTIONS[name] = factory


def make_selection(name: str, **params: Any) -> SelectionOperator:
    """The selection operator registered as ``name``, here or by an installed package, built with its own parameters."""
    return _make("selection operator", _SELECTIONS, name, params, installed_part(ENTRY_POINT_GROUP, name))


def make_fitness(name: str, **params: Any) -> FitnessFunction:
    """``conservative_rating`` (``k``) or ``mean_reward`` (``window``)."""
    return _make("fitness function", _FITNESS, name, params)


def _make(
    what: str,
    registry: Mapping[str, Callable[..., Any]],
    name: str,
    params: dict[str, Any],
    installed: Callable[..., Any] | None = None,
) -> Any:
    factory = registry.get(name) or installed
    if factory is None:
        raise ValueError(f"unknown {what} {name!r}; choose one of {', '.join(sorted(registry))}")
    try:
        return factory(**params)
    except TypeError as error:
        raise ValueError(f"{what} {name!r} does not take these parameters: {error}") from error
