"""X4: crossover along the line from the worse parent through the better one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.operators.base import Operator
from verl_populora.evolution.operators.combination import combine_factors
from verl_populora.evolution.recompression import FactorSpec, recompress


@dataclass(frozen=True)
class Extrapolation(Operator):
    """X4: ``dW = dW_worse + eta (dW_better - dW_worse)`` with one eta for all modules, uniform in [eta_min, eta_max].

    The first parent is the better one. The exact sum has rank 2r and is recompressed to the best update of the child's
    rank. ``factorwise`` extrapolates A and B separately instead, which is cheaper and adds the cross terms described in
    ``combine_factors``.
    """

    name: ClassVar[str] = "extrapolation"
    arity: ClassVar[int] = 2

    eta_min: float = 1.0
    eta_max: float = 1.5
    factorwise: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eta_min <= self.eta_max:
            raise ValueError(f"eta_min {self.eta_min} is greater than eta_max {self.eta_max}")

    def draw_shared(self, names: Sequence[str], generator: torch.Generator) -> float:
        position = float(torch.rand((), generator=generator, dtype=torch.float64))
        return self.eta_min + (self.eta_max - self.eta_min) * position

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        better, worse = parents
        combine = combine_factors if self.factorwise else recompress
        return combine([(shared, better), (1.0 - shared, worse)], spec)
