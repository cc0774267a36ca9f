"""Settings of evolution, beside the code that uses them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class EvolutionUnit(StrEnum):
    STEP = "step"
    EPOCH = "epoch"


def _default_mutations() -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType({"spectral": {}, "layer_gaussian": {}, "component_masking": {}, "adaptive_gaussian": {}})


def _default_crossovers() -> Mapping[str, Mapping[str, Any]]:
    return MappingProxyType({"dare": {}, "layerwise": {}, "svd_subspace": {}, "extrapolation": {}})


@dataclass(frozen=True, slots=True)
class EvolutionConfig:
    """How a population evolves between training steps; defaults are the paper's."""

    enabled: bool = True
    interval: int = 10  # evolve every so many units
    unit: EvolutionUnit = EvolutionUnit.STEP
    selection: str = "truncation"  # registry name of the selection operator
    selection_params: Mapping[str, Any] = field(default_factory=dict)  # fraction, elitism, min_age, ...
    crossover_rate: float = 0.5  # chance that a child has two parents; else it is a mutant of one
    mutations: Mapping[str, Mapping[str, Any]] = field(default_factory=_default_mutations)  # name -> params
    crossovers: Mapping[str, Mapping[str, Any]] = field(default_factory=_default_crossovers)
    cross_role: bool = False  # parents may come from the other role
    hall_of_fame: int = 0  # best past members of each role kept on disk; 0 keeps none
    hall_of_fame_matches: float = 0.0  # probability with which a match is played against a past student
    collapse_cosine: float = 0.99  # mean pairwise cosine of dW from which a population counts as copies

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", EvolutionUnit(self.unit))
        if self.interval < 1:
            raise ValueError(f"population.evolution.interval must be at least 1, not {self.interval}")
        if not 0.0 <= self.crossover_rate <= 1.0:
            raise ValueError(f"population.evolution.crossover_rate must be in [0, 1], not {self.crossover_rate}")
        if not self.mutations:
            raise ValueError(
                "population.evolution.mutations is empty; name at least one, since a role with a single survivor can"
                " only mutate"
            )
        if self.crossover_rate > 0.0 and not self.crossovers:
            raise ValueError("population.evolution.crossovers is empty; set crossover_rate=0 or name a crossover")
        if self.hall_of_fame < 0:
            raise ValueError(f"population.evolution.hall_of_fame must not be negative, got {self.hall_of_fame}")
        if not 0.0 <= self.hall_of_fame_matches <= 1.0:
            raise ValueError(
                f"population.evolution.hall_of_fame_matches must be in [0, 1], not {self.hall_of_fame_matches}"
            )
        if self.hall_of_fame_matches and not self.hall_of_fame:
            raise ValueError(
                "population.evolution.hall_of_fame_matches needs past members: set population.evolution.hall_of_fame to"
                " how many of each role are kept"
            )
        if not 0.0 < self.collapse_cosine <= 1.0:
            raise ValueError(f"population.evolution.collapse_cosine must be in (0, 1], not {self.collapse_cosine}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "EvolutionConfig":
        """From a plain mapping such as a resolved configuration node; unknown keys raise ``ValueError``.

        ``mutations`` and ``crossovers`` replace the default sets; an operator with ``null`` has its own defaults.
        """
        known = {one.name for one in fields(cls)}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ValueError(
                f"unknown population.evolution settings: {', '.join(unknown)}; known: {', '.join(sorted(known))}"
            )
        settings = dict(values)
        for key in ("mutations", "crossovers"):
            if key in settings:
                settings[key] = {name: dict(params or {}) for name, params in settings[key].items()}
        return cls(**settings)
