"""Values as text: reading and comparing what programs returned and what models answered.

Text is never evaluated. A parser of literals rebuilds plain built-in values (int, float, bool, None, str,
bytes, complex, list, tuple, dict, set, frozenset), and only those are compared.

Equality is Python's between such values, which is what AZR scores by:
- numbers are compared by value, so ``9 == 9.0`` and ``True == 1``; ``-0.0 == 0.0``; nothing is rounded;
- a list is not a tuple, a str is not bytes; a set equals a frozenset with the same members;
- the order of a dict's items does not matter;
- NaN equals nothing, not even itself, wherever it stands.
Limits: 100 levels of nesting, 4,300 digits an int, and the caller's number of characters.
"""

import re
import unicodedata

from azr_overrides.sandbox.template.canonical import MAX_DEPTH, NotAValue, ValueTooLong, canonical

__all__ = ["NotAValue", "ValueTooLong", "canonical", "contains_nan", "parse_value", "same_value"]

MAX_INT_DIGITS = 4300

_TOKEN = re.compile(
    r"""
    (?:[ \t\r\n\f]|\#[^\n]*)*
    (?:
      (?P<string>(?:[rR][bB]?|[bB][rR]?|[uU])?(?:
          '''(?:[^\\]|\\.)*?''' | \"\"\"(?:[^\\]|\\.)*?\"\"\" | '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*"))
    | (?P<number>0[xX](?:_?[0-9a-fA-F])+ | 0[oO](?:_?[0-7])+ | 0[bB](?:_?[01])+
        | (?:[0-9](?:_?[0-9])*\.?(?:[0-9](?:_?[0-9])*)?|\.[0-9](?:_?[0-9])*)
          (?:[eE][+-]?[0-9](?:_?[0-9])*)?[jJ]?)
    | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<mark>[][(){},:+-])
    | (?P<end>\Z)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_CONSTANTS = {"None": None, "True": True, "False": False}
_FLOAT_NAMES = ("nan", "inf", "infinity")


def parse_value(text: str, max_chars: int = 65_536) -> object:
    """Rebuild the value of one literal.

    Besides Python's literals this reads what ``canonical`` writes for values that have none: ``nan``,
    ``inf``, ``set()``, ``frozenset({1})``, and ``float('nan')`` and its like. ``1, 2`` without parentheses is
    a tuple. Raises NotAValue for everything else, and ValueTooLong past ``max_chars``.
    """
    if len(text) > max_chars:
        raise ValueTooLong(f"{len(text)} characters, more than {max_chars}")
    return _Parser(text).parse()


def same_value(first: str, second: str, max_chars: int = 65_536) -> bool:
    """Whether two texts stand for equal values, by the rules above. Raises NotAValue if one is no value."""
    return parse_value(first, max_chars) == parse_value(second, max_chars)


def contains_nan(value: object) -> bool:
    """Whether a rebuilt value has NaN anywhere, so that it does not even equal itself."""
    if isinstance(value, float):
        return value != value
    if isinstance(value, dict):
        return any(contains_nan(key) or contains_nan(item) for key, item in value.items())
    return isinstance(value, (list, tuple, set, frozenset)) and any(contains_nan(item) for item in value)


class _Parser:
    """Recursive descent over ``_TOKEN``. Floats are made anew each time, so that no NaN is identical to
    another.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._kind = self._token = ""
        self._advance()

    def parse(self) -> object:
        value = self._value(MAX_DEPTH)
        if self._token == ",":
            value = (value, *self._items("", MAX_DEPTH - 1))
        if self._kind != "end":
            raise NotAValue(f"unexpected {self._token[:20]!r}")
        return value

    def _advance(self) -> str:
        """Move to the next token and return the one left behind."""
        token = self._token
        match = _TOKEN.match(self._text, self._position)
        if match is None or match.lastgroup is None:
            raise NotAValue(f"unexpected {self._text[self._position :].strip()[:20]!r}")
        self._position = match.end()
        self._kind, self._token = match.lastgroup, match[match.lastgroup]
        return token

    def _take(self, mark: str) -> None:
        if self._kind != "mark" or self._token != mark:
            raise NotAValue(f"expected {mark!r}, found {self._token[:20]!r}")
        self._advance()

    def _value(self, depth: int) -> object:
        if self._kind == "string":
            return self._strings()
        if self._kind == "number" or self._token in ("+", "-") or self._token in _FLOAT_NAMES:
            return self._number()
        if self._token in _CONSTANTS:
            return _CONSTANTS[self._advance()]
        if depth == 0:
            raise NotAValue(f"nested deeper than {MAX_DEPTH} levels")
        if self._kind == "name":
            return self._named(depth)
        if self._token == "[":
            self._advance()
            items = list(self._rest_of_items(depth - 1))
            self._take("]")
            return items
        if self._token == "(":
            return self._parenthesis(depth)
        if self._token == "{":
            return self._brace(depth)
        raise NotAValue(f"unexpected {self._token[:20]!r}" if self._token else "nothing there")

    def _rest_of_items(self, depth: int) -> list:
        """Items up to a closing mark, which is left in place."""
        if self._token in ("]", ")", "}") and self._kind == "mark":
            return []
        first = self._value(depth)
        return [first, *self._items("])}", depth)] if self._token == "," else [first]

    def _items(self, closing: str, depth: int) -> list:
        """The items after a first one, each led by a comma; a last comma may stand alone."""
        items = []
        while self._kind == "mark" and self._token == ",":
            self._advance()
            if self._kind == "end" or self._kind == "mark" and self._token in tuple(closing):
                break
            items.append(self._value(depth))
        return items

    def _parenthesis(self, depth: int) -> object:
        self._advance()
        if self._token == ")":
            self._advance()
            return ()
        first = self._value(depth - 1)
        value = first
        if self._token == ",":
            value = (first, *self._items(")", depth - 1))
        self._take(")")
        return value

    def _brace(self, depth: int) -> object:
        self._advance()
        if self._token == "}":
            self._advance()
            return {}
        first = self._value(depth - 1)
        if self._token != ":":
            members = [first, *self._items("}", depth - 1)]
            self._take("}")
            return _hashed(set, members)
        pairs = [(first, self._item_value(depth))]
        while self._token == ",":
            self._advance()
            if self._token == "}":
                break
            key = self._value(depth - 1)
            pairs.append((key, self._item_value(depth)))
        self._take("}")
        return _hashed(dict, pairs)

    def _item_value(self, depth: int) -> object:
        self._take(":")
        return self._value(depth - 1)

    def _named(self, depth: int) -> object:
        name = self._advance()
        if name not in ("set", "frozenset", "float"):
            raise NotAValue(f"{name[:20]!r} is not a literal")
        self._take("(")
        if name == "float":
            value = self._spelled_float()
        elif self._token == ")":
            value = set() if name == "set" else frozenset()
        else:
            members = self._value(depth - 1)
            if not isinstance(members, (set, frozenset, list, tuple)):
                raise NotAValue(f"{name} of something that is not a literal collection")
            value = _hashed(set if name == "set" else frozenset, members)
        self._take(")")
        return value

    def _spelled_float(self) -> float:
        spelled = self._strings() if self._kind == "string" else ""
        word = spelled.strip().lower() if isinstance(spelled, str) else ""
        if word.lstrip("+-") not in _FLOAT_NAMES:
            raise NotAValue("float() of something other than 'nan' or 'inf'")
        return float(word)

    def _number(self) -> int | float | complex:
        """A signed number, or a complex one written as a sum."""
        real = self._signed()
        if isinstance(real, complex) or self._kind != "mark" or self._token not in ("+", "-"):
            return real
        imaginary = self._signed()
        if not isinstance(imaginary, complex):
            raise NotAValue("an expression, not a literal")
        # -0 is the integer 0, but as the real part of a complex number its sign counts.
        part = float(real)
        return complex(-part if self._minus_zero and part == 0 else part, imaginary.imag)

    def _signed(self) -> int | float | complex:
        negative = False
        while self._kind == "mark" and self._token in ("+", "-"):
            negative ^= self._advance() == "-"
            if self._kind == "mark":
                raise NotAValue("more than one sign")
        number = self._unsigned()
        if isinstance(number, complex):
            return complex(0.0, -number.imag) if negative else number
        self._minus_zero = negative and number == 0
        return -number if negative else number

    def _unsigned(self) -> int | float | complex:
        kind, token = self._kind, self._advance()
        if kind == "name" and token in _FLOAT_NAMES:
            return float(token)
        if kind != "number":
            raise NotAValue(f"expected a number, found {token[:20]!r}")
        if self._kind in ("name", "number", "string"):
            raise NotAValue(f"{self._token[:20]!r} directly after a number")
        digits = token.replace("_", "")
        if token[:2].lower() in ("0x", "0o", "0b"):
            if len(digits) > MAX_INT_DIGITS:
                raise NotAValue(f"int of more than {MAX_INT_DIGITS} digits")
            return int(digits, 0)
        if digits[-1] in "jJ":
            return complex(0.0, float(digits[:-1]))
        if not digits.isdigit():
            return float(digits)
        if len(digits) > MAX_INT_DIGITS:
            raise NotAValue(f"int of more than {MAX_INT_DIGITS} digits")
        if digits[0] == "0" and digits.strip("0"):
            raise NotAValue("leading zeros in an int")
        return int(digits)

    def _strings(self) -> str | bytes:
        """Adjacent string literals are one."""
        parts = []
        while self._kind == "string":
            parts.append(_decode(self._advance()))
        if self._kind in ("name", "number"):
            raise NotAValue(f"{self._token[:20]!r} directly after a string")
        if len({type(part) for part in parts}) > 1:
            raise NotAValue("bytes and str literals side by side")
        return type(parts[0])().join(parts)


def _hashed(kind: type, items: object) -> object:
    try:
        return kind(items)
    except TypeError as error:
        raise NotAValue(f"{kind.__name__} with an unhashable member") from error


def _decode(token: str) -> str | bytes:
    """The value of one string token, which holds nothing but one string."""
    prefix = token[: min(token.index(quote) for quote in ("'", '"') if quote in token)].lower()
    body = token[len(prefix) :]
    quotes = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    body = body[quotes:-quotes].replace("\r\n", "\n").replace("\r", "\n")
    is_bytes = "b" in prefix
    if is_bytes and not body.isascii():
        raise NotAValue("bytes with a character outside ASCII")
    if "r" not in prefix and "\\" in body:
        body = (_BYTES_ESCAPE if is_bytes else _STRING_ESCAPE).sub(_unescape, body)
    return body.encode("latin-1") if is_bytes else body


_SIMPLE_ESCAPE = r"\\(?:(?P<octal>[0-7]{1,3})|x(?P<hex>[0-9a-fA-F]{2})|(?P<broken>x)|(?P<plain>[\n\\'\"abfnrtv])"
_BYTES_ESCAPE = re.compile(_SIMPLE_ESCAPE + ")")
_STRING_ESCAPE = re.compile(
    _SIMPLE_ESCAPE
    + r"|u(?P<short>[0-9a-fA-F]{4})|U(?P<long>[0-9a-fA-F]{8})|N\{(?P<name>[^}]*)\}|(?P<broken_long>[uUN]))"
)
_PLAIN = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


def _unescape(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    text = match[kind]
    if kind == "plain":
        return _PLAIN.get(text, text)
    try:
        if kind == "octal":
            return chr(int(text, 8) & 0xFF if match.re is _BYTES_ESCAPE else int(text, 8))
        if kind in ("hex", "short", "long"):
            return chr(int(text, 16))
        if kind == "name":
            return unicodedata.lookup(text)
    except (KeyError, ValueError, OverflowError) as error:
        raise NotAValue("malformed escape in a string") from error
    raise NotAValue("malformed escape in a string")
