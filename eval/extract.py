"""Finding the answer in a completion. Pure text, no parsing of mathematics or code."""

import re

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_FENCE = re.compile(
    r"^[ \t]*```[ \t]*(?P<language>[\w+-]*)[^\n]*\n(?P<body>.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE
)
_STATED = re.compile(r"(?:final\s+answer|the\s+answer)\s*(?:is|:|=)\s*:?\s*(?P<answer>[^\n]+)", re.IGNORECASE)
_HASHES = re.compile(r"####\s*(?P<answer>[^\n]+)")


def closing_brace(text: str, opening: int) -> int:
    """Index of the brace that closes the one at ``opening``, or -1; escaped braces don't count."""
    depth = 0
    index = opening
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return -1


def last_box(text: str) -> str | None:
    """Content of the last complete ``\\boxed{...}`` (or ``\\fbox``), boxes inside it opened; None without one."""
    for match in reversed(list(_BOX.finditer(text))):
        start = match.end()
        if start >= len(text):
            continue
        if text[start] != "{":
            token = re.match(r"\\?[^\s$\\{}]+", text[start:])
            if token:
                return token.group().rstrip(".,")
            continue
        end = closing_brace(text, start)
        if end < 0:
            continue
        content = text[start + 1 : end].strip()
        inner = _BOX.match(content)
        if inner and inner.end() < len(content) and content[inner.end()] == "{":
            return last_box(content)
        return content
    return None


def answer_block(text: str) -> str | None:
    """Text after the last ``<answer>`` up to ``</answer>`` or the end; None without the tag."""
    _, tag, tail = text.rpartition("<answer>")
    return tail.split("</answer>")[0].strip() if tag else None


def final_answer(text: str) -> str | None:
    """The answer to a mathematics question: answer block, else last box, else a stated final answer."""
    block = answer_block(text)
    if block is not None:
        boxed = last_box(block)
        return boxed if boxed is not None else (block or None)
    boxed = last_box(text)
    if boxed is not None:
        return boxed
    for pattern in (_HASHES, _STATED):
        found = list(pattern.finditer(text))
        if found:
            return found[-1].group("answer").strip().strip("*").rstrip(".").strip()
    return None


def code_block(text: str) -> str | None:
    """The last fenced Python block (or last fenced block) of the answer block or the text; None without a fence."""
    block = answer_block(text)
    scope = block if block is not None else text
    fences = [match for match in _FENCE.finditer(scope) if match["body"].strip()]
    python = [match for match in fences if match["language"].lower() in ("python", "python3", "py")]
    chosen = python or fences
    return chosen[-1]["body"] if chosen else None
