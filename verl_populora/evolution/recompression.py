"""From singular triplets back to the two factors of an adapter."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.lowrank import LowRankSvd, svd_of_sum

# Row norm of ``lora_a`` as PEFT initialises it: uniform in +-1/sqrt(in_features).
_ROW_NORM = 1.0 / math.sqrt(3.0)


@dataclass(frozen=True, slots=True)
class FactorSpec:
    """What the factors of a child look like."""

    rank: int
    alpha: float
    dtype: torch.dtype

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class Part:
    """The update ``(U left) (V right)^T`` in terms of a parent's singular vectors."""

    parent: LowRankSvd
    left: Tensor  # (m, j) float64; carries the singular values
    right: Tensor  # (m, j) float64, orthonormal columns


def with_values(parent: LowRankSvd, values: Tensor) -> Part:
    """``U diag(values) V^T``: the parent's directions with other singular values (m,)."""
    return Part(parent, torch.diag(values), torch.eye(parent.size, dtype=torch.float64))


def components(parent: LowRankSvd, start: int, stop: int) -> Part:
    """Singular components ``start`` to ``stop - 1`` of the parent, fewer where it has fewer."""
    select = torch.eye(parent.size, dtype=torch.float64)[:, start:stop]
    return Part(parent, select * parent.values[start:stop], select)


def to_factors(parts: Sequence[Part], spec: FactorSpec) -> LoraFactors:
    """The factors of the sum of ``parts``, which have at most ``spec.rank`` columns together.

    ``a = c (V right)^T`` and ``b = U left / (c scaling)`` with the constant c of a freshly initialised adapter. The
    split depends on dW alone, not on how a parent's factors shared its magnitude, and a component without weight keeps
    a live row in ``a`` beside its zero column in ``b``: the state in which LoRA starts, so it can be trained.
    Components that are missing up to the rank get such a pair too, with rows taken cyclically. Computed in float32 or
    float64, rounded once.
    """
    to_b, to_a = 1.0 / (_ROW_NORM * spec.scaling), _ROW_NORM
    first = parts[0].parent
    a = torch.empty(spec.rank, first.right.size, dtype=spec.dtype)
    b = torch.empty(first.left.size, spec.rank, dtype=spec.dtype)
    filled = 0
    for part in parts:
        columns = slice(filled, filled + part.left.shape[1])
        part.parent.u(part.left * to_b, out=b[:, columns])
        part.parent.v(part.right * to_a, out=a[columns].T)
        filled = columns.stop
    if filled < spec.rank:
        a[filled:] = a[torch.arange(spec.rank - filled) % filled]
        b[:, filled:] = 0.0
    return LoraFactors(a, b, spec.scaling)


def recompress(terms: Sequence[tuple[float, LoraFactors]], spec: FactorSpec) -> LoraFactors:
    """The best approximation of rank ``spec.rank`` to ``sum(weight * dW)``."""
    total = svd_of_sum(terms).truncate(spec.rank)
    return to_factors([with_values(total, total.values)], spec)
