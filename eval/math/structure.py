"""The shape of a normalised answer: lists, tuples, intervals, number bases, choice letters, words."""

import re
from dataclasses import dataclass

_OPEN, _CLOSE = "([{", ")]}"
_RELATION = re.compile(r"(\\le(?![a-z])|\\ge(?![a-z])|<|>|\\lt(?![a-z])|\\gt(?![a-z]))")
_BASE_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TEXT_ONLY = re.compile(r"\\(?:text|mathrm|mbox|textbf|mathbf|textrm|textit|operatorname)\s*\{([^{}]*)\}")


def _depths(text: str) -> list[int]:
    """Nesting depth before each character; a half-open interval's brackets close each other."""
    depth, depths = 0, []
    for char in text:
        depths.append(depth)
        if char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth = max(0, depth - 1)
    return depths


def split_list(text: str) -> list[str]:
    """Top-level elements, separated by commas, semicolons, "and" or "or"; enclosing set braces are removed."""
    text = re.sub(
        r"\\(?:text|mathrm|mbox|textrm)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])",
        ",",
        text,
    )
    text = text.replace(r"\{", "{").replace(r"\}", "}").strip()
    if text.startswith("{") and text.endswith("}") and min(_depths(text)[1:], default=0) >= 1:
        text = text[1:-1]
    depths = _depths(text)
    cuts = [i for i, char in enumerate(text) if char in ",;" and depths[i] == 0]
    pieces = [text[start + 1 : end] for start, end in zip([-1, *cuts], [*cuts, len(text)], strict=True)]
    return [piece.strip() for piece in pieces if piece.strip()]


def tuple_components(text: str) -> list[str] | None:
    """Components of one ``(a, b, ...)`` with at least two, else None."""
    if not (text.startswith("(") and text.endswith(")") and min(_depths(text)[1:], default=0) >= 1):
        return None
    components = split_list(text[1:-1])
    return components if len(components) > 1 else None


def without_left_side(text: str) -> str:
    """``(m,n)=(2,4)`` and ``x \\in [1,2]`` to their right sides."""
    text = re.sub(r"^\(\s*(?:\\?[A-Za-z]\w*\s*,\s*)+\\?[A-Za-z]\w*\s*\)\s*(?:=|\\in(?![a-z]))\s*", "", text)
    return re.sub(r"^\\?[A-Za-z]+\s*\\in(?![a-z])\s*", "", text)


def expand_plus_minus(elements: list[str]) -> list[str]:
    """Every element with ``\\pm`` as its two readings (``\\mp`` opposite)."""
    expanded = []
    for element in elements:
        if r"\pm" in element:
            expanded.append(element.replace(r"\pm", "+").replace(r"\mp", "-"))
            expanded.append(element.replace(r"\pm", "-").replace(r"\mp", "+"))
        else:
            expanded.append(element)
    return expanded


@dataclass(frozen=True, slots=True)
class BasedNumber:
    digits: str
    base: str  # "" when it was left out


def based_number(text: str) -> BasedNumber | None:
    """``52_8``, ``4210_{\\text{five}}`` or bare digits; None for anything else."""
    text = _TEXT_ONLY.sub(r"\1", text).replace(" ", "")
    match = re.fullmatch(r"(?P<digits>[0-9A-F]+)(?:_\{?(?P<base>\d+|[a-z]+)\}?)?", text)
    if not match:
        return None
    base = match["base"] or ""
    if base in _BASE_WORDS:
        base = str(_BASE_WORDS.index(base) + 2)
    return BasedNumber(match["digits"], base) if base.isdigit() or not base else None


def choice_letter(text: str) -> str | None:
    """``(C)``, ``\\text{C}`` or ``C.`` as "C"; lower-case letters are symbols, not choices."""
    bare = _TEXT_ONLY.sub(r"\1", text).strip().rstrip(".").strip()
    match = re.fullmatch(r"\(?\s*([A-J])\s*\)?", bare)
    return match.group(1) if match else None


def text_answer(text: str) -> str | None:
    """The words of an answer written as ``\\text{...}``, lower case, without articles; None when it isn't one."""
    if not _TEXT_ONLY.fullmatch(text.strip()):
        return None
    return plain_words(text) or None


def plain_words(text: str) -> str:
    bare = _TEXT_ONLY.sub(r"\1", text).lower()
    return " ".join(word for word in re.findall(r"[a-z]+", bare) if word not in ("a", "an", "the"))


def as_interval(text: str) -> str | None:
    """``2 < x \\le 4``, ``x > 2`` or unions of such in LaTeX interval notation; None for anything else."""
    parts = re.split(r"\s*(?:\\text\{\s*or\s*\}|\bor\b|\\cup|\\lor)\s*", text)
    intervals = [_one_interval(part.strip()) for part in parts]
    if any(interval is None for interval in intervals):
        return None
    return r" \cup ".join(interval for interval in intervals if interval)


def _one_interval(text: str) -> str | None:
    pieces = [piece.strip() for piece in _RELATION.split(text)]
    terms, relations = pieces[::2], [_direction(piece) for piece in pieces[1::2]]
    variable = re.compile(r"\\?[A-Za-z](?:_\{?\w+\}?)?")
    if len(terms) == 3 and variable.fullmatch(terms[1]) and relations[0][0] == relations[1][0]:
        ascending = relations[0][0] == "<"
        low, high = (terms[0], terms[2]) if ascending else (terms[2], terms[0])
        closed_low, closed_high = (
            (relations[0][1], relations[1][1]) if ascending else (relations[1][1], relations[0][1])
        )
        return f"{'[' if closed_low else '('}{low}, {high}{']' if closed_high else ')'}"
    if len(terms) == 2 and variable.fullmatch(terms[0]) != variable.fullmatch(terms[1]):
        (direction, closed) = relations[0]
        below = (direction == "<") == bool(variable.fullmatch(terms[0]))
        bound = terms[1] if variable.fullmatch(terms[0]) else terms[0]
        if below:
            return rf"(-\infty, {bound}{']' if closed else ')'}"
        return rf"{'[' if closed else '('}{bound}, \infty)"
    return None


def _direction(relation: str) -> tuple[str, bool]:
    """(direction, closed) of one relation sign."""
    less = relation in ("<", r"\lt", r"\le")
    return ("<" if less else ">", relation in (r"\le", r"\ge"))


def is_interval(text: str) -> bool:
    return bool(re.fullmatch(r"(?:[(\[][^()\[\]]+,[^()\[\]]+[)\]](?:\s*\\cup\s*)?)+", text.strip()))
