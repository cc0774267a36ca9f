"""M2 and M4: Gaussian mutations of the factors."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.operators.base import Operator, inherit
from verl_populora.evolution.recompression import FactorSpec

_LAYER = re.compile(r"^(?P<layer>(?:.*?\.)?\d+)\.")


@dataclass(frozen=True)
class AdaptiveGaussian(Operator):
    """M4: every factor W gets noise ``epsilon * std(W) * N(0, 1)``.

    The scale adapts to each tensor. A factor of zeros has no spread and stays zero, so the child of an untrained
    parent is an untrained adapter.
    """

    name: ClassVar[str] = "adaptive_gaussian"
    arity: ClassVar[int] = 1

    epsilon: float = 0.15

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epsilon < 0:
            raise ValueError(f"epsilon must not be negative, got {self.epsilon}")

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        child = inherit(parents[0], spec)
        return LoraFactors(
            _with_noise(child.a, self.epsilon, generator),
            _with_noise(child.b, self.epsilon, generator),
            child.scaling,
        )


@dataclass(frozen=True)
class LayerGaussian(AdaptiveGaussian):
    """M2: the noise of M4 on a random ``fraction`` (f) of the layers, at least one; the rest is inherited.

    A layer is all modules that share the name up to their first number ("model.layers.7"); a module without a number
    is a layer of its own.
    """

    name: ClassVar[str] = "layer_gaussian"

    epsilon: float = 0.1
    fraction: float = 0.33

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction of layers must be in (0, 1], not {self.fraction}")

    def draw_shared(self, names: Sequence[str], generator: torch.Generator) -> set[str]:
        layers = sorted({layer_of(name) for name in names})
        count = max(1, round(self.fraction * len(layers)))
        return {layers[index] for index in torch.randperm(len(layers), generator=generator)[:count].tolist()}

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        if layer_of(name) not in shared:
            return inherit(parents[0], spec)
        return super().vary(name, parents, spec, generator, shared)


def layer_of(module: str) -> str:
    """The layer that a module belongs to: its name up to the first number, or the whole name."""
    match = _LAYER.match(module)
    return match["layer"] if match else module


def _with_noise(tensor: Tensor, epsilon: float, generator: torch.Generator) -> Tensor:
    spread = float(tensor.float().std(correction=0))
    noise = torch.randn(tensor.shape, generator=generator)
    return noise.mul_(epsilon * spread).add_(tensor).to(tensor.dtype)
