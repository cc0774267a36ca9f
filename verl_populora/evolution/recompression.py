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
    b = [part.parent.u(part.left * to_b).to(spec.dtype) for part in parts]
    a = [part.parent.v(part.right * to_a).T.to(spec.dtype) for part in parts]
    missing = spec.rank - sum(columns.shape[1] for columns in b)
    if missing > 0:
        rows = torch.cat(a)
        a.append(rows[torch.arange(missing) % rows.shape[0]])
        b.append(b[0].new_zeros(b[0].shape[0], missing))
    return LoraFactors(_joined(a, dim=0), _joined(b, dim=1), spec.scaling)


def recompress(terms: Sequence[tuple[float, LoraFactors]], spec: FactorSpec) -> LoraFactors:
    """The best approximation of rank ``spec.rank`` to ``sum(weight * dW)``."""
    total = svd_of_sum(terms).truncate(spec.rank)
    return to_factors([with_values(total, total.values)], spec)


def _joined(tensors: list[Tensor], dim: int) -> Tensor:
    return (tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=dim)).contiguous()
