"""Finding fenced blocks, tags and calls in the text of a completion.

Fence patterns are case-insensitive and lazy, so fences pair in the order in which they appear. A block's body
is everything between the line of its label and its closing fence, trailing spaces included.
"""

import re

_FLAGS = re.IGNORECASE | re.DOTALL
_ANY_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_PYTHON_LABEL = re.compile(r"(?:python3?|py(?=\s))\s*", re.IGNORECASE)
_VALUE_LABEL = re.compile(r"(?:input|output|message)\b", re.IGNORECASE)
_BOX = "\\boxed"


def program_blocks(text: str) -> list[str]:
    """Bodies of the fenced blocks that may hold a program: all but ``input``, ``output``, ``message``.

    A label for Python is removed; any other label stays part of the body.
    """
    bodies = []
    for body in _ANY_FENCE.findall(text):
        if _VALUE_LABEL.match(body):
            continue
        if label := _PYTHON_LABEL.match(body):
            body = body[label.end() :]
        bodies.append(body.removeprefix("\n").removesuffix("\n"))
    return bodies


def labelled_blocks(text: str, label: str) -> list[str]:
    """Bodies of the blocks fenced as ```` ```label ````, leading whitespace removed."""
    return re.findall(rf"```{label}\b\s*(.*?)\n?```", text, _FLAGS)


def commented_value(text: str, label: str) -> str | None:
    """The text after the last ``# Label:``, up to the next fence that starts a line, else to the end."""
    found = re.findall(rf"#[ \t]*{label}:[ \t]*(.*?)(?=\n```|\Z)", text, _FLAGS)
    return found[-1] if found else None


def tagged_values(text: str, tag: str) -> list[str]:
    """Contents of ``<tag>`` elements without leading whitespace; one that stays open ends with the text."""
    return re.findall(rf"<{tag}>\s*(.*?)(?:</{tag}>|\Z)", text, _FLAGS)


def call_arguments(text: str, name: str) -> list[str]:
    """What stands between the balanced parentheses of every call ``name(...)``."""
    ends = bracket_pairs(text, "(", ")")
    starts = [match.end() - 1 for match in re.finditer(rf"\b{name}\s*\(", text, re.IGNORECASE)]
    return [text[start + 1 : ends[start]] for start in starts if start in ends]


def last_box(text: str) -> str | None:
    r"""The last balanced ``\boxed{...}`` with its shell, or None."""
    ends = bracket_pairs(text, "{", "}")
    starts = [match.start() for match in re.finditer(r"\\boxed\{", text)]
    closed = [start for start in starts if start + len(_BOX) in ends]
    return text[closed[-1] : ends[closed[-1] + len(_BOX)] + 1] if closed else None


def box_content(box: str) -> str:
    r"""What a box made by `last_box` holds; any other text is returned unchanged."""
    return box[len(_BOX) + 1 : -1] if box.startswith(_BOX + "{") and box.endswith("}") else box


def bracket_pairs(text: str, opening: str, closing: str) -> dict[int, int]:
    """Index of the closing bracket for the index of every opening one that is closed.

    One pass, however often a model repeats an opening bracket.
    """
    pairs: dict[int, int] = {}
    open_at: list[int] = []
    for index, character in enumerate(text):
        if character == opening:
            open_at.append(index)
        elif character == closing and open_at:
            pairs[open_at.pop()] = index
    return pairs
