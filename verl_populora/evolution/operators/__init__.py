"""Variation operators: mutations of one parent, crossovers of two."""

from verl_populora.evolution.operators.base import Operator, SpectralOperator
from verl_populora.evolution.operators.dare import DareCrossover
from verl_populora.evolution.operators.extrapolation import Extrapolation
from verl_populora.evolution.operators.gaussian import AdaptiveGaussian, LayerGaussian
from verl_populora.evolution.operators.layerwise import LayerwiseCrossover
from verl_populora.evolution.operators.masking import ComponentMasking
from verl_populora.evolution.operators.spectral import SpectralMutation
from verl_populora.evolution.operators.subspace import SubspaceCrossover

__all__ = [
    "AdaptiveGaussian",
    "ComponentMasking",
    "DareCrossover",
    "Extrapolation",
    "LayerGaussian",
    "LayerwiseCrossover",
    "Operator",
    "SpectralMutation",
    "SpectralOperator",
    "SubspaceCrossover",
]
