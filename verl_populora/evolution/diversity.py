"""How different the members of a population are, measured on their updates dW in factor space."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import torch

from verl_populora.adapters.weights import AdapterWeights
from verl_populora.evolution.lowrank import LowRankSvd, svd


@dataclass(frozen=True, slots=True)
class PairDiversity:
    """Two members compared. Angles are nan where one of them has no update at all."""

    first: str
    second: str
    cosine: float  # of the two updates over all modules, in [-1, 1]; 0 where one is zero, 1 where both are
    distance: float  # |dW_1 - dW_2| / sqrt(|dW_1| |dW_2|), Frobenius norms; 0 for copies, inf where one is zero
    left_angle: float  # root mean square principal angle of the column spaces of dW, mean over modules; radians
    right_angle: float  # the same for the row spaces


@dataclass(frozen=True, slots=True)
class DiversityReport:
    pairs: tuple[PairDiversity, ...]
    norms: Mapping[str, float]  # Frobenius norm of each member's update over all modules
    mean_cosine: float  # over pairs; nan with fewer than two members
    min_distance: float  # over pairs; nan with fewer than two members
    collapsed: bool  # trained members are copies of one another up to a scale


def diversity(adapters: Mapping[str, AdapterWeights], collapse_cosine: float = 0.99) -> DiversityReport:
    """Compare all pairs of ``adapters`` (by seat or member name), which must have the same modules.

    ``collapsed`` says that the mean cosine reaches ``collapse_cosine``. Members without any update (fresh adapters)
    are not copies in this sense: only pairs of trained members are counted.
    """
    names = list(adapters)
    modules = _common_modules(adapters)
    products = dict.fromkeys(combinations(names, 2), 0.0)
    squares = dict.fromkeys(names, 0.0)
    angles: dict[tuple[str, str], list[tuple[float, float]]] = {pair: [] for pair in products}
    for module in modules:
        updates = {name: svd(adapters[name].modules[module]) for name in names}
        for name in names:
            squares[name] += float(updates[name].values.square().sum())
        for first, second in products:
            product, angle = _overlap(updates[first], updates[second])
            products[first, second] += product
            angles[first, second].append(angle)
    norms = {name: math.sqrt(square) for name, square in squares.items()}
    pairs = tuple(
        _compare(first, second, product, norms, angles[first, second]) for (first, second), product in products.items()
    )
    trained = [pair.cosine for pair in pairs if norms[pair.first] > 0 and norms[pair.second] > 0]
    return DiversityReport(
        pairs=pairs,
        norms=norms,
        mean_cosine=_mean([pair.cosine for pair in pairs]),
        min_distance=min((pair.distance for pair in pairs), default=math.nan),
        collapsed=bool(trained) and _mean(trained) >= collapse_cosine,
    )


def _overlap(first: LowRankSvd, second: LowRankSvd) -> tuple[float, tuple[float, float]]:
    """``<dW_1, dW_2>`` and the root mean square principal angles of the column and of the row spaces.

    The spaces are those of singular values above 1e-6 of the largest. With unequal dimensions there are as many angles
    as the smaller space has dimensions; they are nan where an update is zero.
    """
    one, other = _support(first), _support(second)
    if one.size == 0 or other.size == 0:
        return 0.0, (math.nan, math.nan)
    left, right = one.overlap(other)
    product = float((left * right * torch.outer(one.values, other.values)).sum())
    return product, (_angle(left), _angle(right))


def _support(update: LowRankSvd) -> LowRankSvd:
    largest = float(update.values[0])
    return update.truncate(int((update.values > 1e-6 * largest).sum()) if largest > 0 else 0)


def _angle(overlap: torch.Tensor) -> float:
    cosines = torch.linalg.svdvals(overlap).clamp(max=1.0)
    return float(torch.arccos(cosines).square().mean().sqrt())


def _compare(
    first: str, second: str, product: float, norms: Mapping[str, float], angles: list[tuple[float, float]]
) -> PairDiversity:
    scale = norms[first] * norms[second]
    if scale > 0.0:
        cosine = max(-1.0, min(1.0, product / scale))
        distance = math.sqrt(max(0.0, norms[first] ** 2 + norms[second] ** 2 - 2 * product) / scale)
    else:
        alike = norms[first] == norms[second]
        cosine, distance = (1.0, 0.0) if alike else (0.0, math.inf)
    left = [angle for angle, _ in angles if not math.isnan(angle)]
    right = [angle for _, angle in angles if not math.isnan(angle)]
    return PairDiversity(first, second, cosine, distance, _mean(left), _mean(right))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _common_modules(adapters: Mapping[str, AdapterWeights]) -> list[str]:
    if not adapters:
        return []
    (reference, first), *others = adapters.items()
    for name, adapter in others:
        if set(adapter.modules) != set(first.modules):
            example = min(set(adapter.modules) ^ set(first.modules))
            raise ValueError(f"{reference} and {name} adapt different modules, such as {example}")
        for module, factors in first.modules.items():
            other = adapter.modules[module]
            if factors.a.shape[1] != other.a.shape[1] or factors.b.shape[0] != other.b.shape[0]:
                raise ValueError(f"{module} has different shapes in {reference} and {name}: other bases")
    return list(first.modules)
