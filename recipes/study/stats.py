"""Means over seeds with 95% intervals of Student's t.

A study has a few seeds, so intervals are wide and assume that seeds scatter normally. They cover the seeds only: the
base, the held-out tasks and the settings are the same in all runs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

import mpmath

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean or a difference of means; without two seeds a side there is no interval."""

    value: float
    half: float | None  # half width of the interval
    seeds: int  # of the smaller side

    @property
    def excludes_zero(self) -> bool:
        return self.half is not None and abs(self.value) > self.half


def t_quantile(degrees: float) -> float:
    """The ``t`` with ``P(|T| <= t) = 0.95`` for that many degrees of freedom, which need not be whole.

    ``P(|T| > t)`` is the regularised incomplete beta function ``I_x(degrees / 2, 1 / 2)`` at
    ``x = degrees / (degrees + t^2)``.
    """

    def excess(x):
        return mpmath.betainc(degrees / 2, 0.5, 0, x, regularized=True) - (1 - CONFIDENCE)

    x = float(mpmath.findroot(excess, (1e-12, 1 - 1e-12), solver="anderson", tol=1e-24, maxsteps=200, verify=False))
    return math.sqrt(degrees * (1 - x) / x)


def mean(values: Sequence[float]) -> Estimate:
    """The mean of one value a seed.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("a mean needs at least one seed")
    n = len(values)
    half = t_quantile(n - 1) * math.sqrt(variance(values) / n) if n > 1 else None
    return Estimate(fmean(values), half, n)


def difference(first: Sequence[float], second: Sequence[float]) -> Estimate:
    """``mean(first) - mean(second)`` of independent seeds (B. L. Welch, Biometrika 34, 1947).

    Raises:
        ValueError: a side has no value.
    """
    if not first or not second:
        raise ValueError("a difference needs at least one seed a side")
    value, seeds = fmean(first) - fmean(second), min(len(first), len(second))
    if seeds < 2:
        return Estimate(value, None, seeds)
    parts = [variance(side) / len(side) for side in (first, second)]
    total = sum(parts)
    if total == 0:
        return Estimate(value, 0.0, seeds)
    degrees = total**2 / sum(part**2 / (len(side) - 1) for part, side in zip(parts, (first, second), strict=True))
    return Estimate(value, t_quantile(degrees) * math.sqrt(total), seeds)
