"""Intervals and paired comparisons. Shares are in [0, 1]; every random stream is a generator that the caller passes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Z_95 = 1.959963984540054
RESAMPLES = 2_000


@dataclass(frozen=True, slots=True)
class Interval:
    """A share with a 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of two shares with a 95% interval and the share of resamples in which it is positive."""

    value: float
    low: float
    high: float
    positive: float


def wilson(correct: float, n: int) -> Interval:
    """Wilson's score interval of ``correct`` of ``n`` (E. B. Wilson, JASA 22, 1927). Raises ValueError for n = 0."""
    if n <= 0:
        raise ValueError("an interval needs at least one item")
    share = correct / n
    denominator = 1 + Z_95**2 / n
    centre = (share + Z_95**2 / (2 * n)) / denominator
    half = Z_95 * math.sqrt(share * (1 - share) / n + Z_95**2 / (4 * n * n)) / denominator
    return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def cell_interval(scores: np.ndarray, generator: np.random.Generator) -> Interval:
    """Wilson's interval for one sample an item; a bootstrap over items for means of several samples."""
    if np.isin(scores, (0.0, 1.0)).all():
        return wilson(float(scores.sum()), len(scores))
    return group_interval({"": scores[None, :]}, generator)


def _weights(generator: np.random.Generator, count: int) -> np.ndarray:
    """(resamples, count) bootstrap weights; each row sums to 1."""
    return generator.multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count


def _resampled_means(
    scores: Mapping[str, np.ndarray], item_weights: Mapping[str, np.ndarray], generator: np.random.Generator
) -> np.ndarray:
    """(resamples,) means over members, then items, then benchmarks. The same members are drawn for all benchmarks."""
    members = next(iter(scores.values())).shape[0]
    member_weights = _weights(generator, members) if members > 1 else np.ones((RESAMPLES, 1))
    means = [np.sum((member_weights @ table) * item_weights[name], axis=1) for name, table in scores.items()]
    return np.mean(means, axis=0)


def _plain_mean(scores: Mapping[str, np.ndarray]) -> float:
    return float(np.mean([table.mean() for table in scores.values()]))


def group_interval(scores: Mapping[str, np.ndarray], generator: np.random.Generator) -> Interval:
    """Mean over benchmarks of a group of members, resampling items (in each benchmark) and members.

    ``scores``: benchmark -> (members, items).
    """
    items = {name: _weights(generator, table.shape[1]) for name, table in scores.items()}
    low, high = np.percentile(_resampled_means(scores, items, generator), (2.5, 97.5))
    return Interval(_plain_mean(scores), float(low), float(high))


def paired_difference(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], generator: np.random.Generator
) -> Difference:
    """``first - second`` on the same items: both sides are resampled with the same item weights, members apart.

    Raises ValueError if the benchmarks or their numbers of items differ.
    """
    if {name: table.shape[1] for name, table in first.items()} != {n: table.shape[1] for n, table in second.items()}:
        raise ValueError("a paired comparison needs the same items on both sides")
    items = {name: _weights(generator, table.shape[1]) for name, table in first.items()}
    differences = _resampled_means(first, items, generator) - _resampled_means(second, items, generator)
    low, high = np.percentile(differences, (2.5, 97.5))
    ties = float(np.mean(differences == 0))
    positive = float(np.mean(differences > 0)) + ties / 2
    return Difference(_plain_mean(first) - _plain_mean(second), float(low), float(high), positive)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean, or None as soon as one value is missing: what was not run is not zero."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if values and len(present) == len(values) else None
