"""From lineage records to weights."""

from collections.abc import Callable, Sequence

from verl_populora.adapters.weights import AdapterWeights
from verl_populora.evolution.operators.base import Track
from verl_populora.evolution.registry import make_operator, operator_names
from verl_populora.members import Lineage

LoadParent = Callable[[str, int], AdapterWeights]
"""``(member name, adapter version) -> `` its weights, as a checkpoint or the engine holds them."""


def make_child(lineage: Lineage, load_parent: LoadParent, track: Track | None = None) -> AdapterWeights:
    """The weights of a newborn; the same record and the same parents give the same bits on the same software.

    Raises ``ValueError`` for a founder, whose weights follow from no parent.
    """
    if not lineage.parents:
        raise ValueError(f"a member with operator {lineage.operator!r} has no parents: it is a founder")
    if len(lineage.parents) != len(lineage.parent_versions):
        raise ValueError(
            f"lineage names {len(lineage.parents)} parents but {len(lineage.parent_versions)} parent versions"
        )
    operator = make_operator(lineage.operator, **lineage.params)
    parents = [
        load_parent(name, version) for name, version in zip(lineage.parents, lineage.parent_versions, strict=True)
    ]
    return operator(parents, lineage.seed, track)


def child_of_each_operator(parents: Sequence[AdapterWeights], seed: int) -> dict[str, AdapterWeights]:
    """One child by every registered operator with its default parameters, by operator name.

    Args:
        parents: two adapters, the fitter one first; mutations take the first. Used to compare how much of their
            parents' performance the children of different operators keep.
    """
    children = {}
    for name in operator_names():
        operator = make_operator(name)
        children[name] = operator(parents[: operator.arity], seed)
    return children
