"""Canonical text of values: written by one side, read and compared by the other."""

import ast
import math
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr_overrides.tasks.values import (
    NotAValue,
    ValueTooLong,
    canonical,
    contains_nan,
    parse_value,
    same_value,
)

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**60), max_value=10**60)
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.text(alphabet=st.characters(exclude_categories=()))  # lone surrogates too
    | st.binary()
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=3)
        | st.sets(HASHABLE, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
    ),
    max_leaves=20,
)


def exactly_equal(first: object, second: object) -> bool:
    """Same types and values all the way down, the sign of zero included."""
    if type(first) is not type(second):
        return False
    if isinstance(first, (list, tuple)):
        assert isinstance(second, (list, tuple))
        return len(first) == len(second) and all(map(exactly_equal, first, second))
    if isinstance(first, dict):
        assert isinstance(second, dict)
        return exactly_equal(list(first.items()), list(second.items()))
    if isinstance(first, (set, frozenset)):
        return first == second
    return first == second and repr(first) == repr(second)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_a_value_survives_the_way_through_its_text(value):
    text = canonical(value)
    assert exactly_equal(parse_value(text), value)
    assert canonical(parse_value(text)) == text


@settings(max_examples=100, deadline=None)
@given(VALUES, VALUES)
def test_comparison_of_texts_is_equality_of_values(first, second):
    assert same_value(canonical(first), canonical(second)) == (first == second)
    assert same_value(canonical(first), canonical(first))


@settings(max_examples=100, deadline=None)
@given(st.sets(HASHABLE, max_size=6), st.randoms(use_true_random=False))
def test_the_text_of_a_set_does_not_depend_on_its_order(members, random):
    shuffled = list(members)
    random.shuffle(shuffled)
    assert canonical(set(shuffled)) == canonical(members)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="[](){},:+-.'\"\\ 0123456789eEjxobrNTsetfrozn_#\n", max_size=60) | st.text(max_size=60))
def test_any_text_is_read_as_python_reads_its_literals_or_refused(text):
    try:
        value = parse_value(text)
    except NotAValue:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = ast.literal_eval(f"({text}\n)" if text.strip() else text)
        except (ValueError, SyntaxError):
            assert any(name in text for name in ("nan", "inf", "set", "float"))  # our own additions
            return
    assert type(value) is type(expected) and value == expected


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("9", "9.0", True),
        ("True", "1", True),
        ("-0.0", "0", True),
        ("[1, 2]", "(1, 2)", False),
        ("1, 2", "(1, 2)", True),
        ("'a'", '"a"', True),
        ("'a'", "b'a'", False),
        ("'1'", "1", False),
        ("{1, 2}", "{2, 1}", True),
        ("{1}", "frozenset({1})", True),
        ("{'a': 1, 'b': 2}", "{'b': 2, 'a': 1}", True),
        ("0.1", "0.1000000001", False),
        ("inf", "float('inf')", True),
        ("nan", "nan", False),
        ("[nan]", "[nan]", False),
        ("9007199254740993", "9007199254740992.0", False),
    ],
)
def test_equality_follows_the_documented_rules(first, second, equal):
    assert same_value(first, second) is equal


@pytest.mark.parametrize(
    "text",
    ["", "2+3", "'a'+'b'", "eval(gold_output)", "```5```", "1 2", "f'x'", "a", "[1", "{[1]}", "--1", "007", "dict(a=1)"]
    + [
        "9" * 4301,
        "0) or (True",
        "lambda: 1",
        "[1][0]",
        "set",
        "float('1')",
        "'a' b'b'",
        "'\\x4'",
        "1__0",
        "1if",
        "\0",
    ],
)
def test_what_is_not_one_literal_is_refused(text):
    with pytest.raises(NotAValue):
        parse_value(text)


def test_depth_is_limited_on_both_sides():
    value: object = 0
    for _ in range(100):
        value = [value]
    assert parse_value(canonical(value)) == value
    with pytest.raises(NotAValue, match="deeper"):
        canonical([value])
    with pytest.raises(NotAValue, match="deeper"):
        parse_value("[" * 101 + "]" * 101)


@pytest.mark.parametrize(
    "bomb", ["[" * 50_000, "-" * 50_000, "(" * 50_000 + ")" * 50_000, "{1:" * 20_000, "'" * 30_001]
)
def test_bombs_are_refused_quietly(bomb):
    with pytest.raises(NotAValue):
        parse_value(bomb)


def test_a_cycle_and_a_wide_value_are_refused():
    loop: list = []
    loop.append(loop)
    with pytest.raises(NotAValue):
        canonical(loop)
    wide: object = "x"
    for _ in range(60):
        wide = [wide, wide]
    with pytest.raises(ValueTooLong):
        canonical(wide, max_chars=1000)
    with pytest.raises(ValueTooLong):
        canonical("x" * 1001, max_chars=1000)
    with pytest.raises(ValueTooLong):
        parse_value("1" * 1001, max_chars=1000)


def test_long_ints_are_refused_before_they_are_printed():
    largest = (1 << 14_280) - 1
    assert parse_value(canonical(largest)) == largest
    with pytest.raises(NotAValue, match="bits"):
        canonical(10**6000)


@pytest.mark.parametrize(
    "value",
    [
        object(),
        range(3),
        type("S", (str,), {})("a"),
        type("L", (list,), {})(),
        complex(math.inf, 0),
        iter([]),
        print,
        ...,
    ],
)
def test_only_plain_values_have_a_text(value):
    with pytest.raises(NotAValue):
        canonical([value])


def test_nan_is_found_wherever_it_hides():
    for text in ("nan", "[1, (nan,)]", "{'a': nan}", "{nan: 1}", "{1, nan}"):
        assert contains_nan(parse_value(text))
    assert not contains_nan(parse_value("['nan', 1.0, {}]"))
