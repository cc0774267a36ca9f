"""Python values as JSON and back, between a confined process and the grader.

Decoding builds only built-in types, numbers and ``Opaque``; it runs nothing, whatever the bytes say. Encoding looks at
what a subclass of a built-in type really holds, so an object can't pretend to equal something through its methods.
"""

import decimal
import fractions
import hashlib
import itertools
import json
import math
from typing import Any

MAX_DEPTH = 100
_PLAIN_INT = 1 << 63
_DIRECT = {str, bool, type(None)}
_CHUNK = 1000  # elements of a huge list that are encoded at once
_to_json = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
_HUGE = 100_000  # elements; a longer list or tuple travels as a digest of its elements


class Opaque:
    """A value of another type: it is not None, and it equals nothing."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Opaque({self.type_name})"


class Digest:
    """A list or tuple too long to send. Equal to another one with the same elements, in the same order."""

    def __init__(self, tag: str, length: int, sha256: str) -> None:
        self.identity = (tag, length, sha256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and other.identity == self.identity

    def __hash__(self) -> int:
        return hash(self.identity)


class BadEncoding(ValueError):
    """The bytes are not an encoded value."""


_SEQUENCES = ((list, "l"), (tuple, "t"), (set, "s"), (frozenset, "z"))


def encode(value: Any, depth: int = 0) -> Any:
    """A JSON-serialisable form of ``value``. Raises RecursionError past ``MAX_DEPTH`` levels."""
    if depth > MAX_DEPTH:
        raise RecursionError("value is nested too deeply")
    if value is None or value is True or value is False:
        return value
    kind = type(value)
    if kind.__module__ == "numpy":
        return _encode_numpy(value, kind)
    if isinstance(value, int):
        number = int.__index__(value)
        return number if -_PLAIN_INT <= number < _PLAIN_INT else ["i", hex(number)]
    if isinstance(value, float):
        number = float.__float__(value)
        return number if math.isfinite(number) else ["f", repr(number)]
    if isinstance(value, str):
        return str.__str__(value)
    for base, tag in _SEQUENCES:
        if isinstance(value, base):
            items = list(base.__iter__(value))  # pyright: ignore[reportArgumentType]
            if len(items) > _HUGE and tag in ("l", "t"):
                return _encode_digest(tag, items, depth)
            return [tag, _encode_items(items, depth)]
    if isinstance(value, dict):
        return ["d", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in dict.items(value)]]
    if isinstance(value, Digest):
        return ["h", *value.identity]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).hex()]
    if isinstance(value, complex):
        return ["c", repr(complex(value).real), repr(complex(value).imag)]
    if kind is decimal.Decimal:
        return ["D", str(value)]
    if kind is fractions.Fraction:
        return ["F", hex(value.numerator), hex(value.denominator)]
    return ["o", str(kind.__name__)[:100]]


def _encode_items(items: list, depth: int) -> list:
    kinds = set(map(type, items))
    if kinds <= _DIRECT or (kinds == {int} and min(items) >= -_PLAIN_INT and max(items) < _PLAIN_INT):
        return items
    return [encode(item, depth + 1) for item in items]


def _encode_digest(tag: str, items: list, depth: int) -> Any:
    digest = hashlib.sha256()
    for start in range(0, len(items), _CHUNK):
        text = _chunk_text(items[start : start + _CHUNK], depth)
        digest.update(text.encode("utf-8", "surrogatepass"))
    return ["h", tag, len(items), digest.hexdigest()]


def _chunk_text(chunk: list, depth: int) -> str:
    kinds = set(map(type, chunk))
    if kinds in ({tuple}, {list}) and set(map(type, itertools.chain.from_iterable(chunk))) <= _DIRECT:
        return (
            f"{kinds.pop().__name__}s:{_to_json(chunk)}"  # at the speed of C: such lists have a hundred million items
        )
    return _to_json([encode(item, depth + 1) for item in chunk])


def _encode_numpy(value: Any, kind: type) -> Any:
    if kind.__name__ == "ndarray" or not hasattr(value, "item"):
        return ["o", f"numpy.{kind.__name__}"]
    item = value.item()
    return ["n", kind.__name__, encode(item, MAX_DEPTH)]


def dumps(value: Any) -> bytes:
    return _to_json(encode(value)).encode("utf-8", "surrogatepass")


def decode(form: Any, depth: int = 0) -> Any:
    """The value of an encoded form. Raises BadEncoding for anything else."""
    if depth > MAX_DEPTH + 2:
        raise BadEncoding("nested too deeply")
    if form is None or isinstance(form, (bool, int, float, str)):
        return form
    if not (isinstance(form, list) and form and isinstance(form[0], str)):
        raise BadEncoding("untagged value")
    try:
        return _decode_tagged(form[0], form[1:], depth)
    except (TypeError, ValueError, IndexError, KeyError, ArithmeticError) as error:
        raise BadEncoding(f"{form[0]}: {error}") from error


def _decode_tagged(tag: str, body: list, depth: int) -> Any:
    if tag in ("l", "t", "s", "z"):
        build = {"l": list, "t": tuple, "s": set, "z": frozenset}[tag]
        return build(decode(item, depth + 1) for item in body[0])
    if tag == "d":
        return {decode(key, depth + 1): decode(item, depth + 1) for key, item in body[0]}
    if tag == "i":
        return int(body[0], 16)
    if tag == "f":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[body[0]]
    if tag == "b":
        return bytes.fromhex(body[0])
    if tag == "c":
        return complex(float(body[0]), float(body[1]))
    if tag == "D":
        return decimal.Decimal(body[0])
    if tag == "F":
        return fractions.Fraction(int(body[0], 16), int(body[1], 16))
    if tag == "n":
        return _decode_numpy(body[0], decode(body[1]))
    if tag == "h":
        return Digest(str(body[0]), int(body[1]), str(body[2]))
    if tag == "o":
        return Opaque(str(body[0]))
    raise ValueError("unknown tag")


def _decode_numpy(type_name: str, item: Any) -> Any:
    import numpy

    scalar = getattr(numpy, type_name, None)
    if not (isinstance(scalar, type) and issubclass(scalar, (numpy.number, numpy.bool_))):
        raise ValueError(f"not a numpy number type: {type_name[:50]}")
    return scalar(item)
