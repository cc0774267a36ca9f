"""M3: mutation by forgetting."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.lowrank import LowRankSvd
from verl_populora.evolution.operators.base import SpectralOperator
from verl_populora.evolution.recompression import FactorSpec, to_factors, with_values


@dataclass(frozen=True)
class ComponentMasking(SpectralOperator):
    """M3: a random ``fraction`` (rho) of each module's singular components is set to zero.

    The number dropped is rounded, and at least one component is kept. Dropped components keep their row in ``a``, so
    the child can learn in their place. Nothing is rescaled: what remains is exactly the parent's.
    """

    name: ClassVar[str] = "component_masking"
    arity: ClassVar[int] = 1

    fraction: float = 0.3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.fraction < 1:
            raise ValueError(f"fraction of components to drop must be in [0, 1), not {self.fraction}")

    def recombine(self, parents: tuple[LowRankSvd, ...], spec: FactorSpec, generator: torch.Generator) -> LoraFactors:
        (parent,) = parents
        dropped = min(round(self.fraction * parent.size), parent.size - 1)
        values = parent.values.clone()
        values[torch.randperm(parent.size, generator=generator)[:dropped]] = 0.0
        return to_factors([with_values(parent, values)], spec)
