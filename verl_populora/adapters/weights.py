"""The weights of one LoRA adapter, free of any framework that trains or serves it."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class LoraFactors:
    """The update of one linear layer, ``dW = scaling * b @ a``."""

    a: torch.Tensor  # (rank, in_features)
    b: torch.Tensor  # (out_features, rank)
    scaling: float  # lora_alpha / rank


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    """A whole adapter: one pair of factors for each adapted module.

    Module names are those of the base model, without PEFT's prefix and suffix
    ("model.layers.1.self_attn.q_proj"), in the model's order.
    """

    modules: Mapping[str, LoraFactors]
    rank: int
    alpha: float
