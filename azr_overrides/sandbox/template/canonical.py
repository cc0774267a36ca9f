"""Canonical text of plain built-in values, written by the child about what a program returned.

The same value has the same text in every interpreter: members of sets are sorted by their text, everything
else is Python's own ``repr``. Exactly the built-in types count: a subclass can lie about itself, a custom
object can't be compared from outside, and an address in a repr differs from run to run.
``azr_overrides.tasks.values`` reads the text back.

A program may replace anything in ``builtins``; the private copy below keeps such a patch out of these
functions.
"""

import builtins

__builtins__ = dict(vars(builtins))

MAX_DEPTH = 100

type_name = type.__dict__["__name__"].__get__  # of a class that may lie about itself
MAX_INT_BITS = 14_280  # 4,299 digits or fewer; Python itself refuses to print or read more than 4,300


class NotAValue(ValueError):
    """Not made of plain built-in values alone, or nested too deeply."""


class ValueTooLong(NotAValue):
    """The canonical text would exceed its limit."""


def canonical(value: object, max_chars: int = 65_536) -> str:
    """Return the canonical text of ``value``.

    Raises NotAValue for any other type than int, float, bool, None, str, bytes, complex, list, tuple, dict,
    set and frozenset (nested), for more than 100 levels (so for cycles too), for an int of more than 14,280
    bits, and for a complex number with an infinite or undefined part; ValueTooLong past ``max_chars``
    characters.
    """
    return _Encoder(max_chars).encode(value, MAX_DEPTH)


class _Encoder:
    def __init__(self, budget: int) -> None:
        self._budget = budget

    def encode(self, value: object, depth: int) -> str:
        kind = type(value)
        if kind in _SCALARS:
            text = _SCALARS[kind](value, self._budget)
            self._spend(len(text))
            return text
        if kind not in _CONTAINERS:
            raise NotAValue(f"{type_name(kind)[:60]} is not a plain built-in type")
        if depth == 0:
            raise NotAValue(f"nested deeper than {MAX_DEPTH} levels")
        self._spend(2 + 2 * max(0, len(value) - 1))  # type: ignore[arg-type]
        if kind is dict:
            return "{" + ", ".join([self._item(item, depth - 1) for item in value.items()]) + "}"  # type: ignore
        parts = [self.encode(item, depth - 1) for item in value]  # type: ignore[attr-defined]
        if kind is list:
            return "[" + ", ".join(parts) + "]"
        if kind is tuple:
            return "(" + ", ".join(parts) + (",)" if len(parts) == 1 else ")")
        members = "{" + ", ".join(sorted(parts)) + "}" if parts else ""
        if kind is set:
            return members or "set()"
        return f"frozenset({members})"

    def _item(self, item: tuple, depth: int) -> str:
        self._spend(2)
        return self.encode(item[0], depth) + ": " + self.encode(item[1], depth)

    def _spend(self, chars: int) -> None:
        self._budget -= chars
        if self._budget < 0:
            raise ValueTooLong("canonical text is too long")


def _int_text(value: int, budget: int) -> str:
    if int.bit_length(value) > MAX_INT_BITS:
        raise NotAValue(f"int of more than {MAX_INT_BITS} bits")
    return int.__repr__(value)


def _complex_text(value: complex, budget: int) -> str:
    if not (abs(value.real) < _INFINITY and abs(value.imag) < _INFINITY):
        raise NotAValue("complex number with an infinite or undefined part")
    return complex.__repr__(value)


def _sized_text(value: str | bytes, budget: int) -> str:
    if len(value) > budget:  # before repr, which may take ten times the memory
        raise ValueTooLong("canonical text is too long")
    return repr(value)


_INFINITY = float("inf")
_SCALARS = {
    int: _int_text,
    bool: lambda value, budget: bool.__repr__(value),
    float: lambda value, budget: float.__repr__(value),
    complex: _complex_text,
    str: _sized_text,
    bytes: _sized_text,
    type(None): lambda value, budget: "None",
}
_CONTAINERS = frozenset({list, tuple, dict, set, frozenset})
