"""The mathematics grader behind the published AZR numbers (profile ``parity``), its faults included.

Reproduced by behaviour from AZR's ``evaluation/math_eval`` (MIT licence): how it finds the answer, which characters and
words it deletes from it, and the call to math-verify. The published runs used math-verify 0.7.0.
"""

import re

from math_verify import parse, verify
from word2number import w2n

from eval.extract import closing_brace

_KEEP_UNITS = ("minerva_math",)  # sets whose answers keep their unit words
# The words that are deleted, in the order in which they are tried; then all of them again with an s.
_UNITS_TEXT = (
    "east|degree|mph|kmph|ft|m sqaure| m east|sq m|deg|mile|q .|monkey|prime|ratio|profit of rs|rd|o|gm|"
    "p . m|lb|tile|per|dm|lt|gain|ab|way|west|a .|b .|c .|d .|e .|f .|g .|h .|t|a|h|no change|men|"
    "soldier|pie|bc|excess|st|inches|noon|percent|by|gal|kmh|c|acre|rise|a . m|th|π r 2|sq|mark|l|toy|"
    "coin|sq . m|gallon|° f|profit|minw|yr|women|feet|am|pm|hr|cu cm|square|v â € ™|are|rupee|rounds|"
    "cubic|cc|mtr|s|ohm|number|kmph|day|hour|minute|min|second|man|woman|sec|cube|mt|sq inch|mp|∏ cm ³|"
    "hectare|more|sec|unit|cu . m|cm 2|rs .|rs|kg|g|month|km|m|cm|mm|apple|liter|loss|yard|pure|year|"
    "increase|decrease|d|less|Surface|litre|pi sq m|s .|metre|meter|inch"
)
_UNITS = _UNITS_TEXT.split("|")
_UNIT_PATTERNS = [re.compile(rf"(^|\W){unit}($|\W)") for unit in (*_UNITS, *(unit + "s" for unit in _UNITS))]
_EARLY_REPLACEMENTS = (
    ("\\!", ""), ("bmatrix", "pmatrix"), ("tfrac", "frac"), ("dfrac", "frac"), ("\\neq", "\\ne"), ("\\leq", "\\le"),
    ("\\geq", "\\ge"), ("\\left", ""), ("\\right", ""), ("\\{", "{"), ("\\}", "}"),
)  # fmt: skip
_LATE_REPLACEMENTS = (
    ("x=", ""), ("y=", ""), ("z=", ""), ("x\\in", ""), ("y\\in", ""), ("z\\in", ""), ("x\\to", ""), ("y\\to", ""),
    ("z\\to", ""), ("\\emptyset", "{}"), ("(-\\infty,\\infty)", "\\mathbb{R}"), ("\\%", ""), ("%", ""), (" .", " 0."),
    ("{.", "{0."),
)  # fmt: skip


def extract(text: str, template: str) -> str:
    """The answer in a completion, before it is cleaned; AZR templates and others are read differently."""
    return _extract_azr(text) if template.startswith("azr") else _extract_qwen(text)


def _last_boxed(text: str) -> str | None:
    """The last ``\\boxed{...}`` with its shell."""
    if "\\boxed " in text:
        return "\\boxed " + text.split("\\boxed ")[-1].split("$")[0]
    start = max(text.rfind("\\boxed"), -1)
    if start < 0:
        start = text.rfind("\\fbox")
    opening = text.find("{", start) if start >= 0 else -1
    end = closing_brace(text, opening) if opening >= 0 else -1
    return text[start : end + 1] if end >= 0 else None


def _extract_azr(text: str) -> str:
    if "<answer>" in text:
        answer = text.split("<answer>")[-1].split("</answer>")[0].strip()
        return (_last_boxed(answer) or "").strip() if "boxed" in answer else answer
    if "boxed" in text:
        return (_last_boxed(text) or "").strip()
    display = re.search(r"\\\[(.*?)\\\]", text)
    return display.group(1).strip() if display else ""


def _extract_qwen(text: str) -> str:
    if "final answer is $" in text and "$. I hope" in text:
        answer = text.split("final answer is $", 1)[1].split("$. I hope", 1)[0].strip()
    elif "boxed" in text:
        tail = text.split("boxed")[-1]
        if tail.startswith("{"):
            end = _plain_closing_brace(tail)
            answer = tail[1:end] if end >= 0 else tail[1:]
        else:
            answer = tail.split("$")[0].strip()
    elif "he answer is" in text:
        answer = text.split("he answer is")[-1].strip()
    elif "final answer is" in text:
        answer = text.split("final answer is")[-1].strip()
    else:
        numbers = re.findall(r"-?\d*\.?\d+", text.replace(",", ""))
        answer = numbers[-1] if numbers else ""
    answer = re.sub(r"\n\s*", "", answer)
    return answer.removeprefix(":").removesuffix(".").removesuffix("/")


def _plain_closing_brace(text: str) -> int:
    depth = 0
    for index, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0:
            return index
    return -1


def clean(text: str, keep_units: bool) -> str:
    """What the published pipeline makes of one answer before it is parsed."""
    text = text.strip().replace("\n", "").rstrip(".")
    text = re.sub(r"\\begin\{array\}\{.*?\}", r"\\begin{pmatrix}", text)
    text = re.sub(r"\\end\{array\}", r"\\end{pmatrix}", text)
    for old, new in _EARLY_REPLACEMENTS:
        text = text.replace(old, new)
    text = re.sub(r"\\text{.*?}$", "", text).strip() or text
    if not keep_units:
        for _ in range(2):
            for pattern in _UNIT_PATTERNS:
                text = pattern.sub(r"\1\2", text) or text
    for mark in ("^{\\circ}", "^\\circ", "\\$", "$", "\\(", "\\)"):
        text = text.replace(mark, "")
    text = re.sub(r"\\text\{(.*?)\}", r"\1", _number_words(text))
    for old, new in _LATE_REPLACEMENTS:
        text = text.replace(old, new)
    text = text.replace("infinity", "\\infty")
    if "\\infty" not in text:
        text = text.replace("inf", "\\infty")
    text = re.sub(r"\\mbox{.*?}", "", text.replace("and", "").replace("\\mathbf", ""))
    if "j" in text and "i" not in text:
        text = text.replace("j", "i")
    text = re.sub(r"(\d+)\.0*([^\d])", r"\1\2", text)
    text = re.sub(r"(\d+)\.0*$", r"\1", text)
    if not text:
        return text
    text = "0" + text if text[0] == "." else text
    sides = text.split("=")
    if len(sides) == 2 and len(sides[0]) <= 2:
        text = sides[1]
    text = re.sub(r"\\sqrt(\w+)", r"\\sqrt{\1}", text).replace(" ", "")
    return _slash_to_fraction(_braced_fractions(text))


def _number_words(text: str) -> str:
    try:
        return str(w2n.word_to_num(text))
    except (ValueError, IndexError, AttributeError):
        return text


def _braced_fractions(text: str) -> str:
    """``\\frac12`` and ``\\frac1{72}`` with both arguments in braces."""
    head, *tails = text.split("\\frac")
    for tail in tails:
        if tail.startswith("{"):
            head += "\\frac" + tail
        elif len(tail) < 2:
            return text
        elif tail[1] == "{":
            head += f"\\frac{{{tail[0]}}}{tail[1:]}"
        else:
            head += f"\\frac{{{tail[0]}}}{{{tail[1]}}}{tail[2:]}"
    return head


def _slash_to_fraction(text: str) -> str:
    match = re.fullmatch(r"(-?\d+|[^/]*sqrt[^/]*)/(-?\d+|[^/]*sqrt[^/]*)", text)
    return f"\\frac{{{match[1]}}}{{{match[2]}}}" if match else text


def equivalent(gold: str, answer: str, benchmark: str) -> bool:
    """Whether the published pipeline calls ``answer`` (already extracted) right."""
    keep_units = benchmark in _KEEP_UNITS
    if benchmark == "olympiadbench":
        gold = gold.strip("$")
    gold = clean(gold, keep_units)
    answer = _as_choice(gold, clean(answer, keep_units))
    reference, given = parse(f"\\boxed{{{gold}}}"), parse(f"\\boxed{{{answer}}}")
    return verify(reference, given)


def _as_choice(gold: str, answer: str) -> str:
    """A gold made of choice letters makes the pipeline look for a letter in the answer."""
    if gold not in tuple("ABCDE") or answer in tuple("ABCDE"):
        return answer
    letters = re.findall(r"\b([A-E])\b", answer.upper())
    return letters[-1] if letters else answer
