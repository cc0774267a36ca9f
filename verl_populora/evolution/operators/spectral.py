"""M1: mutation of the singular value decomposition."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.lowrank import LowRankSvd
from verl_populora.evolution.operators.base import SpectralOperator
from verl_populora.evolution.recompression import FactorSpec, Part, to_factors


@dataclass(frozen=True)
class SpectralMutation(SpectralOperator):
    """M1: ``dW = U S V^T`` becomes ``(U R_u) (S exp(epsilon z)) (V R_v)^T`` with z standard normal.

    ``R_u`` and ``R_v`` are exactly orthogonal: the Cayley transform of ``epsilon K`` with K skew-symmetric and entries
    of variance 1/r, equal to ``I + epsilon K`` to first order. Every singular vector turns by about ``epsilon`` radians
    within the span of the others, and the child's singular values are ``S exp(epsilon z)`` without further error.
    """

    name: ClassVar[str] = "spectral"
    arity: ClassVar[int] = 1

    epsilon: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {self.epsilon}")

    def recombine(self, parents: tuple[LowRankSvd, ...], spec: FactorSpec, generator: torch.Generator) -> LoraFactors:
        (parent,) = parents
        noise = torch.randn(parent.size, generator=generator, dtype=torch.float64)
        values = parent.values * torch.exp(self.epsilon * noise)
        left, right = self._rotations(parent.size, generator)
        return to_factors([Part(parent, left * values, right)], spec)

    def _rotations(self, size: int, generator: torch.Generator) -> Tensor:
        """Two orthogonal matrices near the identity, (2, size, size)."""
        gaussian = torch.randn(2, size, size, generator=generator, dtype=torch.float64)
        half = (gaussian - gaussian.mT) * (self.epsilon / 2 / (2 * size) ** 0.5)
        identity = torch.eye(size, dtype=torch.float64)
        return torch.linalg.solve(identity - half, identity + half)
