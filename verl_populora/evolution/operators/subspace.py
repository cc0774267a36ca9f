"""X3: crossover of singular subspaces."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.lowrank import LowRankSvd
from verl_populora.evolution.operators.base import SpectralOperator
from verl_populora.evolution.recompression import FactorSpec, components, to_factors


@dataclass(frozen=True)
class SubspaceCrossover(SpectralOperator):
    """X3: the leading k singular components of the fitter parent, components k+1 to r of the other.

    ``k = round(share * r)``, and both parents contribute wherever r > 1. The child of two equal parents is the parent.
    """

    name: ClassVar[str] = "svd_subspace"
    arity: ClassVar[int] = 2

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share < 1:
            raise ValueError(f"share of leading components must lie between 0 and 1, not {self.share}")

    def recombine(self, parents: tuple[LowRankSvd, ...], spec: FactorSpec, generator: torch.Generator) -> LoraFactors:
        leading, trailing = parents
        size = max(leading.size, trailing.size)
        split = min(max(1, round(self.share * size)), max(1, size - 1))
        return to_factors([components(leading, 0, split), components(trailing, split, size)], spec)
