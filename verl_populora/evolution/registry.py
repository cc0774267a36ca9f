"""Variation operators by name."""

from importlib.metadata import entry_points
from typing import Any

from verl_populora.evolution.operators import (
    AdaptiveGaussian,
    ComponentMasking,
    DareCrossover,
    Extrapolation,
    LayerGaussian,
    LayerwiseCrossover,
    Operator,
    SpectralMutation,
    SubspaceCrossover,
)

ENTRY_POINT_GROUP = "verl_populora.operators"
"""Installed packages add operators by an entry point of this group that loads an ``Operator`` subclass."""

ALIASES = {
    "m1": "spectral",
    "m2": "layer_gaussian",
    "m3": "component_masking",
    "m4": "adaptive_gaussian",
    "x1": "dare",
    "x2": "layerwise",
    "x3": "svd_subspace",
    "x4": "extrapolation",
}
"""The paper's short names."""

_OPERATORS: dict[str, type[Operator]] = {
    operator.name: operator
    for operator in (
        SpectralMutation,
        LayerGaussian,
        ComponentMasking,
        AdaptiveGaussian,
        DareCrossover,
        LayerwiseCrossover,
        SubspaceCrossover,
        Extrapolation,
    )
}


def register_operator(operator: type[Operator]) -> type[Operator]:
    """Make an operator available under its ``name``; usable as a class decorator.

    Raises ``ValueError`` for a name that is taken by another class.
    """
    name = operator.name
    if name in ALIASES or _OPERATORS.get(name, operator) is not operator:
        raise ValueError(f"there is an operator {name!r} already; choose another name")
    _OPERATORS[name] = operator
    return operator


def operator_names(arity: int | None = None) -> list[str]:
    """Registered names, of mutations (arity 1), crossovers (2) or all; those of installed packages included."""
    _load_entry_points()
    return sorted(name for name, operator in _OPERATORS.items() if arity in (None, operator.arity))


def operator_class(name: str) -> type[Operator]:
    """The operator registered under a name or one of the paper's short names (``m1`` ... ``x4``)."""
    full_name = ALIASES.get(name.lower(), name)
    if full_name not in _OPERATORS:
        _load_entry_points()
    if full_name not in _OPERATORS:
        known = ", ".join(sorted(_OPERATORS))
        raise ValueError(f"unknown operator {name!r}; choose one of {known}, or {', '.join(ALIASES)}")
    return _OPERATORS[full_name]


def make_operator(name: str, **params: Any) -> Operator:
    """The operator registered under ``name`` with its own parameters; ``ValueError`` for those it does not have."""
    operator = operator_class(name)
    try:
        return operator(**params)
    except TypeError as error:
        raise ValueError(f"operator {name!r} does not take these parameters: {error}") from error


def _load_entry_points() -> None:
    for entry_point in entry_points(group=ENTRY_POINT_GROUP):
        register_operator(entry_point.load())
