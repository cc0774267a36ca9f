"""Complexity of programs: the counts, their independence of layout, and no limit on depth."""

import ast
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from radon.visitors import ComplexityVisitor

from azr_overrides.tasks.complexity import Complexity, complexity

SEEDS = Path(__file__).parents[2] / "shared" / "azr" / "seeds"


def test_the_smallest_program():
    # Module, FunctionDef, Return, Name, Load
    assert complexity("def f(x):\n    return x") == Complexity(ast_depth=5, cyclomatic=1, lines=2, variables=1)


def test_every_kind_of_decision_and_binding_is_counted():
    program = """
import math

def g(a, *rest, key=1, **more):
    return a if a else key

def f(x):
    '''Not counted
    as lines.'''
    # nor is this
    assert x and key or x
    total = 0
    for i, item in enumerate(x):
        while total < i:
            total += 1
        else:
            total = (y := 3)
    try:
        with open(x) as handle:
            pass
    except ValueError as error:
        return [z for z in x if z]
    match x:
        case [first, *others]:
            return 1
        case {"k": v, **remaining}:
            return 2
        case _:
            return 3
    def h(w):
        return lambda q: q if q else w
    return h
"""
    measured = complexity(program)
    # IfExp twice, assert and its two boolean operators, for, while with else, handler, comprehension with
    # if, two cases that can fail
    assert measured.cyclomatic == 1 + 2 + 3 + 1 + 2 + 1 + 2 + 2
    bound = "a rest key more x total i item y handle error z first others v remaining w q"
    assert measured.variables == len(bound.split())
    assert measured.lines == 26


def test_layout_comments_and_docstrings_do_not_count():
    plain = "def f(x):\n    y = [x, x]\n    return y"
    laid_out = 'def f(x):\n    """Doc."""\n\n    # comment\n    y = [x, x]  # more\n\n\n    return y\n\n'
    assert complexity(laid_out).lines == complexity(plain).lines == 3
    assert complexity(laid_out).cyclomatic == complexity(plain).cyclomatic


def test_an_else_line_and_a_closing_bracket_are_lines():
    assert (
        complexity(
            "def f(x):\n    if x:\n        return (\n            1\n        )\n    else:\n        return 2"
        ).lines
        == 7
    )


@given(st.integers(1, 6), st.integers(0, 6))
def test_nesting_deepens_and_branches_add(depth, branches):
    nested = "".join("    " * (level + 1) + "if x:\n" for level in range(depth)) + "    " * (depth + 1) + "pass\n"
    flat = "    if x:\n        pass\n" * branches
    measured = complexity("def f(x):\n" + nested + flat + "    return x")
    assert measured.cyclomatic == 1 + depth + branches
    assert measured.ast_depth == max(2 + depth + 1, 2 + depth + 2, 5)


@pytest.mark.parametrize("length", [50, 900, 2500])
def test_long_chains_do_not_exhaust_the_stack(length):
    chain = complexity("def f(x):\n    return " + " + ".join(["x"] * length))
    assert (chain.ast_depth, chain.cyclomatic) == (length + 4, 1)
    branches = "".join(f"    elif x == {value}:\n        return {value}\n" for value in range(length // 2))
    ladder = complexity("def f(x):\n    if x:\n        return x\n" + branches)
    assert ladder.cyclomatic == 2 + length // 2


@pytest.mark.parametrize(
    "text", ["def f(:", "def f(x):\n\treturn 1\n        return 2", "f\0", "(" * 5000, "-" * 10**6 + "1"]
)
def test_text_that_is_no_program_is_a_value_error(text):
    with pytest.raises(ValueError, match="not a Python program|null bytes"):
        complexity(text)


@pytest.mark.skipif(not SEEDS.is_dir(), reason="no shared seed files")
def test_cyclomatic_complexity_equals_radon_on_recorded_programs():
    compared = 0
    for file in sorted(SEEDS.glob("*_seed_io.jsonl")):
        for line in file.read_text().splitlines():
            program = json.loads(line)["snippet"]
            functions = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.FunctionDef)]
            if len(functions) == 1:  # radon reports every function and closure by itself
                assert complexity(program).cyclomatic == ComplexityVisitor.from_code(program).total_complexity, program
                compared += 1
    assert compared > 1000
