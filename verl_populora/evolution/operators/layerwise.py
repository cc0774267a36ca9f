"""X2: crossover of whole modules."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.operators.base import Operator, inherit
from verl_populora.evolution.recompression import FactorSpec


@dataclass(frozen=True)
class LayerwiseCrossover(Operator):
    """X2: each module comes whole from one parent, from the fitter one with probability ``share``."""

    name: ClassVar[str] = "layerwise"
    arity: ClassVar[int] = 2

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.share <= 1:
            raise ValueError(f"share of the fitter parent must be in [0, 1], not {self.share}")

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        from_first = float(torch.rand((), generator=generator)) < self.share
        return inherit(parents[0] if from_first else parents[1], spec)
