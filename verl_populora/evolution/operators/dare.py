"""X1: crossover by random dropping and rescaling (DARE, Yu et al. 2024)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.operators.base import Operator
from verl_populora.evolution.operators.combination import combine_factors
from verl_populora.evolution.recompression import FactorSpec, recompress

# Masks are drawn as 16-bit integers, four from each 64 random bits.
_LEVELS = 1 << 16


@dataclass(frozen=True)
class DareCrossover(Operator):
    """X1: entries of every factor are dropped with probability ``drop`` and the rest rescaled by 1/(1 - drop); then
    ``dW = weight dW_1 + (1 - weight) dW_2`` is recompressed to the child's rank.

    The masks of A and B are independent, so E[B' A'] = B A: each parent's sparsified update is unbiased, and so is
    their combination before the truncation from rank 2r to r. Entries of dW itself are not dropped: that would leave
    the low-rank world. ``drop`` is rounded to a multiple of 2^-16 and the rescaling uses the rounded value.
    ``factorwise`` adds A and B separately instead of recompressing, see ``combine_factors``.
    """

    name: ClassVar[str] = "dare"
    arity: ClassVar[int] = 2

    drop: float = 0.7
    weight: float = 0.5
    factorwise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.drop < 1 or round((1 - self.drop) * _LEVELS) == 0:
            raise ValueError(f"drop probability must be in [0, 1), not {self.drop}")
        if not 0 <= self.weight <= 1:
            raise ValueError(f"weight of the fitter parent must be in [0, 1], not {self.weight}")

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        weights = (self.weight, 1.0 - self.weight)
        if self.factorwise:
            sparse = [sparsified(parent, self.drop, generator) for parent in parents]
            return combine_factors(list(zip(weights, sparse, strict=True)), spec)
        return recompress([(1.0, self._sparse_sum(parents, weights, generator))], spec)

    def _sparse_sum(
        self, parents: tuple[LoraFactors, ...], weights: tuple[float, ...], generator: torch.Generator
    ) -> LoraFactors:
        """Stacked factors of the weighted sum, which the sparsified ones are written to one after the other."""
        ranks = [parent.a.shape[0] for parent in parents]
        dtype = torch.promote_types(torch.promote_types(parents[0].a.dtype, parents[1].a.dtype), torch.float32)
        a = parents[0].a.new_empty(sum(ranks), parents[0].a.shape[1], dtype=dtype)
        b = parents[0].b.new_empty(parents[0].b.shape[0], sum(ranks), dtype=dtype)
        start = 0
        for parent, weight, rank in zip(parents, weights, ranks, strict=True):
            sparse = sparsified(parent, self.drop, generator)
            a[start : start + rank] = sparse.a
            torch.mul(sparse.b, weight * sparse.scaling, out=b[:, start : start + rank])
            start += rank
        return LoraFactors(a, b, 1.0)


def sparsified(update: LoraFactors, drop: float, generator: torch.Generator) -> LoraFactors:
    """The update with entries of both factors dropped by independent masks; the rescaling goes into ``scaling``."""
    kept_levels = round((1 - drop) * _LEVELS)
    rescale = (_LEVELS / kept_levels) ** 2
    return LoraFactors(
        _dropped(update.a, kept_levels, generator),
        _dropped(update.b, kept_levels, generator),
        update.scaling * rescale,
    )


def _dropped(tensor: Tensor, kept_levels: int, generator: torch.Generator) -> Tensor:
    count = tensor.numel()
    bits = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    # Signed 16-bit integers are uniform over [-2^15, 2^15).
    keep = bits.view(torch.int16)[:count].view(tensor.shape) <= kept_levels - 1 - _LEVELS // 2
    return tensor * keep
