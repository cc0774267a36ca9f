"""The cheap, inexact way to combine two updates."""

from collections.abc import Sequence

import torch

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.operators.base import inherit
from verl_populora.evolution.recompression import FactorSpec


def combine_factors(terms: Sequence[tuple[float, LoraFactors]], spec: FactorSpec) -> LoraFactors:
    """``A = sum(w A_i)``, ``B = sum(w B_i)``: one pass over the factors, no decomposition.

    This is not the combination of the updates. For two parents with weights w and 1 - w,

        ``B A = w dW_1 + (1 - w) dW_2 - w (1 - w) (B_1 - B_2) (A_1 - A_2)``

    in units of the scaling, so it is right only where the parents still share a factor. For independent parents the
    cross terms are as large as the updates themselves.
    """
    parents = [(weight, inherit(update, spec)) for weight, update in terms]
    a = sum((weight * one.a.float() for weight, one in parents), start=torch.zeros(()))
    b = sum((weight * one.b.float() for weight, one in parents), start=torch.zeros(()))
    return LoraFactors(a.to(spec.dtype), b.to(spec.dtype), spec.scaling)
