"""Inputs are the argument list of one call of plain values, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr_overrides.sandbox.template.arguments import BadInput, evaluate_arguments, parse_arguments


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3", ((3,), {})),
        ("", ((), {})),
        ("1,", ((1,), {})),
        ("1, [2, {'a': None}], x=True", ((1, [2, {"a": None}]), {"x": True})),
        ("self=3", ((), {"self": 3})),
        ("*[1, 2], **{'a': 1}", ((1, 2), {"a": 1})),
        ("[9,\n1][0]", ((9,), {})),
        ('"""a\nb"""', (("a\nb",), {})),
        ("3 # three", ((3,), {})),
        ("-.5e3, 'a' 'b' * 2", ((-500.0, "abab"), {})),
        ("'print('", (("print(",), {})),
        ("int('3'), list(range(3))", ((3, [0, 1, 2]), {})),
        ("[x * x for x in range(3) if x], {k: v for k, v in [(1, 2)]}", (([1, 4], {1: 2}), {})),
        ("'test'.upper(), f'{1 + 1}'", (("TEST", "2"), {})),
        ("range(6)", ((range(6),), {})),
        ("frozenset({1}), set(), b'x', 1j", ((frozenset({1}), set(), b"x", 1j), {})),
    ],
)
def test_argument_lists_are_evaluated(text, expected):
    assert evaluate_arguments(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "0) or (True",
        "1)+(2",
        "1)(2",
        "1), (2",
        "1)[0:(1)",
        "1)==(1",
        "1);(2",
        "f(1)",
        "f",
        "print(1)",
        "open('x')",
        "__import__('os')",
        "().__class__",
        "(x for x in [1]).gi_frame",
        "'{0.gi_frame}'.format(1)",
        "[].sort.__self__",
        "str.mro()",
        "lambda: 1",
        "(y := 1)",
        "type('E', (), {})()",
        "x for x in [1]",
        "map(len, ['a'])",
        "...",
        "[1, ...]",
        "undefined",
        "1/0",
        "(",
        ")",
        "\0",
        "'" * 3,
        "not_a_call()",
        "await x",
        "[" * 300 + "]" * 300,
        "-" * 5000 + "1",
        "1 if",
        "True(1)",
    ],
)
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_everything_else_is_refused(text):
    with pytest.raises(BadInput):
        evaluate_arguments(text)


@settings(max_examples=500, deadline=None)
@given(st.text(alphabet="()[]{},.:*+-/'\"\\ 0123456789eTrueNon#=f\n", max_size=30))
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_the_short_cut_for_literals_agrees_with_the_syntax_tree(text):
    """Whatever is evaluated without a syntax tree is the argument list of one call by the syntax tree too."""
    try:
        arguments = evaluate_arguments(text)
    except BadInput:
        return
    call = parse_arguments(text)
    positional = [argument for argument in call.args if type(argument).__name__ != "Starred"]
    assert len(arguments[0]) >= len(positional)
    assert call.func.id == "f"  # type: ignore[attr-defined]
