"""Finding fenced blocks, tags and calls in the text of a completion.

Fence patterns are case-insensitive and lazy, so fences pair in the order in which they appear. A block's body
is everything between the line of its label and its closing fence, trailing spaces included.
"""

import re

_FLAGS = re.IGNORECASE | re.DOTALL
_ANY_FENCE = re.compile(r"```(.*?)```", re.DOTALL)
_PYTHON_LABEL = re.compile(r"python\s*", re.IGNORECASE)
_VALUE_LABEL = re.compile(r"(?:input|output|message)\b", re.IGNORECASE)
_BOX = "\\boxed"


def program_blocks(text: str) -> list[str]:
    """Bodies of all fenced blocks that may hold a program: every label but ``input``, ``output``,
    ``message``.

    The label ``python`` is removed; any other label stays part of the body.
    """
    bodies = []
    for body in _ANY_FENCE.findall(text):
        if _VALUE_LABEL.match(body):
            continue
        body = _PYTHON_LABEL.sub("", body, count=1) if _PYTHON_LABEL.match(body) else body
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
    """Contents of ``<tag>`` elements without leading whitespace; a missing closing tag means the end of the
    text.
    """
    return re.findall(rf"<{tag}>\s*(.*?)(?:</{tag}>|\Z)", text, _FLAGS)


def call_arguments(text: str, name: str) -> list[str]:
    """What stands between the balanced parentheses of every call ``name(...)``."""
    starts = [match.end() - 1 for match in re.finditer(rf"\b{name}\s*\(", text, re.IGNORECASE)]
    ends = [(start, closing_bracket(text, start)) for start in starts]
    return [text[start + 1 : end] for start, end in ends if end is not None]


def last_box(text: str) -> str | None:
    r"""The last balanced ``\boxed{...}`` with its shell, or None."""
    start = text.rfind(_BOX)
    while start >= 0:
        brace = start + len(_BOX)
        if text[brace : brace + 1] == "{" and (end := closing_bracket(text, brace)) is not None:
            return text[start : end + 1]
        start = text.rfind(_BOX, 0, start)
    return None


def box_content(box: str) -> str:
    r"""What a box made by `last_box` holds; any other text is returned unchanged."""
    return box[len(_BOX) + 1 : -1] if box.startswith(_BOX + "{") and box.endswith("}") else box


def closing_bracket(text: str, start: int) -> int | None:
    """Index of the bracket that closes ``text[start]`` (only its own kind counts), None if it stays open."""
    opening = text[start]
    closing = {"(": ")", "{": "}", "[": "]"}[opening]
    depth = 0
    for index in range(start, len(text)):
        if text[index] == opening:
            depth += 1
        elif text[index] == closing:
            depth -= 1
            if depth == 0:
                return index
    return None
