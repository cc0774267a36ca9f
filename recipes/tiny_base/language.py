"""The small typed language of the tiny base: value types, variable names, and random literal values.

A variable's name carries its type, so that a very small model can tell types apart at once.
"""

from enum import StrEnum
from random import Random

Value = int | str | list[int]


class ValueType(StrEnum):
    INT = "int"
    LIST = "list"  # of integers
    STR = "str"


NAMES = {ValueType.INT: "abcde", ValueType.LIST: "xyzw", ValueType.STR: "stu"}
"""Variables of each type, in the order in which a program introduces them."""

ELEMENT, CHARACTER, COUNTER = "v", "k", "i"
"""Loop variables over a list, a string and a range."""

LETTERS = "ghlmnopqr"
"""Letters of string literals; no variable uses one of them."""


def random_value(rng: Random, kind: ValueType) -> Value:
    """A small random value: integers in [0, 20], lists and strings of length 2 to 4."""
    if kind is ValueType.INT:
        return rng.randint(0, 9) if rng.random() < 0.85 else rng.randint(10, 20)
    length = rng.choice((2, 3, 3, 4))
    if kind is ValueType.LIST:
        return rng.sample(range(10), length) if rng.random() < 0.75 else rng.choices(range(10), k=length)
    return "".join(rng.sample(LETTERS, length) if rng.random() < 0.7 else rng.choices(LETTERS, k=length))


def near_value(rng: Random, value: Value) -> Value:
    """A value of the same type that differs in one element (or by at most 3, for an integer)."""
    if isinstance(value, int):
        return max(0, value + rng.choice((-3, -2, -1, 1, 2, 3)))
    if not value:
        return random_value(rng, ValueType.STR if isinstance(value, str) else ValueType.LIST)
    place = rng.randrange(len(value))
    if isinstance(value, str):
        return value[:place] + rng.choice(LETTERS) + value[place + 1 :]
    return [*value[:place], rng.randint(0, 9), *value[place + 1 :]]


def type_of(value: Value) -> ValueType:
    """The type of a value of the language. Raises ``KeyError`` for any other value."""
    return {int: ValueType.INT, list: ValueType.LIST, str: ValueType.STR}[type(value)]


def argument_list(arguments: tuple[Value, ...]) -> str:
    """Arguments as the text between the parentheses of a call."""
    return ", ".join(map(repr, arguments))
