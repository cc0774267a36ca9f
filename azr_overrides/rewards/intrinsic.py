"""Intrinsic measures of a proposal: how complex, how unlike its references, how unusual its values.

All are at least 0. A program that cannot be analysed measures 0.
"""

import ast
import difflib
import json
from collections.abc import Sequence

from complexipy import code_complexity
from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr_overrides.tasks.complexity import parse
from azr_overrides.tasks.text_tools import value_type
from azr_overrides.tasks.type_counters import Counts


def cognitive_complexity(program: str) -> float:
    """Cognitive complexity (Campbell, 2018) divided by 15, the usual limit for one function."""
    try:
        return code_complexity(program).complexity / 15
    except ValueError:
        return 0.0


def halstead_mix(program: str) -> float:
    """0.5 Halstead effort + 0.3 cyclomatic complexity + 0.2 Halstead volume, each scaled and cut to [0, 1].

    The scales are 10,000, 10 (of the most complex function) and 500; the result is rounded to three digits.
    """
    try:
        total = h_visit(parse(program)).total
        cyclomatic = max((block.complexity for block in cc_visit(program)), default=0)
    except (ValueError, SyntaxError, RecursionError):
        return 0.0
    effort, volume = min(total.effort / 10_000, 1), min(total.volume / 500, 1)
    return round(0.5 * effort + 0.3 * min(cyclomatic / 10, 1) + 0.2 * volume, 3)


def edit_distance(first: str, second: str) -> float:
    """1 - similarity ratio of the two programs' syntax trees, written as sorted JSON with an indent of two.

    The ratio is difflib's over characters, so the cost is quadratic in the length of the programs.
    """
    try:
        one, other = (
            json.dumps(_tree(parse(text)), sort_keys=True, indent=2, default=repr) for text in (first, second)
        )
    except (ValueError, RecursionError):
        return 0.0
    return 1.0 - difflib.SequenceMatcher(None, one, other).ratio()


def mean_edit_distance(program: str, references: Sequence[str]) -> float:
    """Mean of `edit_distance` over the references; 0 without any."""
    return sum(edit_distance(program, other) for other in references) / len(references) if references else 0.0


def surprise(text: str, counts: Counts, hierarchical: bool = False) -> float:
    """How unusual a value is among those counted before, in [0, 1]; 1 for one that was never seen.

    Flat: 1 - (occurrences of the value) / (all occurrences). Hierarchical: the mean of 1 - p(type) and
    1 - p(value | type).
    """
    name = value_type(text)
    of_type = counts.get(name, {})
    total = sum(sum(values.values()) for values in counts.values())
    total_of_type = sum(of_type.values())
    if not hierarchical:
        return 1.0 - of_type.get(text, 0) / total if total else 1.0
    type_surprise = 1.0 - total_of_type / total if total else 1.0
    value_surprise = 1.0 - of_type.get(text, 0) / total_of_type if total_of_type else 1.0
    return (type_surprise + value_surprise) / 2


def _tree(node: ast.AST) -> dict:
    """A syntax tree as nested dicts of class name and fields, without contexts and plain list items."""
    result: dict = {"node_type": type(node).__name__}
    for name, value in ast.iter_fields(node):
        if isinstance(value, ast.AST) and name != "ctx":
            result[name] = _tree(value)
        elif isinstance(value, list):
            result[name] = [_tree(item) for item in value if isinstance(item, ast.AST)]
        elif value is not None and name != "ctx":
            result[name] = value
    return result
