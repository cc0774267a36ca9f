"""Rewards of answers to question-answer data: mathematics and multiple choice."""

import re
from fractions import Fraction

from azr_overrides.tasks.blocks import box_content
from azr_overrides.tasks.parsing import extract_answer, format_ok

MATH_METRICS = ("math_verify", "deepscaler", "union")

_LATEX_DRESSING = (
    (re.compile(r"\\(?:left|right|,|!|;|:|\s)"), ""),
    (re.compile(r"\\(?:text|mathrm|mbox|textbf)\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\[dt]frac"), r"\\frac"),
    (re.compile(r"\\frac\{([^{}]+)\}\{([^{}]+)\}"), r"(\1)/(\2)"),
    (re.compile(r"\\frac(\d)(\d)"), r"(\1)/(\2)"),
    (re.compile(r"\^\{?\\circ\}?|\\%|%|\\\$|\$|°"), ""),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
    (re.compile(r"\s+"), ""),
)
_RATIONAL = re.compile(r"(-?)\(?(-?\d+(?:\.\d+)?)\)?(?:/\(?(\d+)\)?)?")


def qa_reward(
    completion: str,
    gold: str,
    *,
    extraction_type: str,
    metric: str = "math",
    math_metric: str = "math_verify",
    boxed_retry: bool = False,
    training: bool = True,
) -> float:
    """The reward of one completion.

    In training the suffix of ``extraction_type`` says how format and correctness (both 0 or 1) combine:

        conditional     -1 for bad format, -0.5 for a wrong answer, else 1
        addition        0.5 format + correct
        multiply        format * correct

    Outside training it is 1 for a correct answer and 0 otherwise, whatever the format.

    Args:
        completion: as made by `azr_overrides.tasks.parsing.completion_text`.
        metric: ``math``, or ``mc`` for a multiple choice letter.
        math_metric: see `math_correct`.

    Raises:
        ValueError: an unknown extraction type or metric.
    """
    answer = box_content(extract_answer(completion, extraction_type, boxed_retry))
    if metric == "mc":
        correct = choice_letter(answer) == choice_letter(gold) != ""
    elif metric == "math":
        correct = math_correct(answer, gold, math_metric)
    else:
        raise ValueError(f"metric is {metric!r}; choose math or mc")
    if not training:
        return float(correct)
    well_formed = format_ok(completion, extraction_type)
    combination = extraction_type.partition("_")[2]
    if combination == "conditional":
        return (1.0 if correct else -0.5) if well_formed else -1.0
    if combination == "addition":
        return 0.5 * well_formed + correct
    if combination == "multiply":
        return float(well_formed and correct)
    raise ValueError(f"extraction_type is {extraction_type!r}; it has to end in _conditional, _addition or _multiply")


def choice_letter(text: str) -> str:
    """The chosen letter in upper case: the last in parentheses, else the last that stands alone."""
    for pattern in (r"\(([A-Za-z])\)", r"\b([A-Z])\b", r"\b([A-Za-z])\b"):
        if letters := re.findall(pattern, text):
            return letters[-1].upper()
    return ""


def math_correct(answer: str, gold: str, math_metric: str = "math_verify") -> bool:
    """Whether two mathematical answers are the same.

    ``math_verify`` compares symbolically with the library of that name, which limits its time by signals and
    so has to run in the main thread. ``deepscaler`` compares normalised text and rational numbers only.
    ``union`` accepts what either accepts. Raises ValueError for any other metric.
    """
    if math_metric not in MATH_METRICS:
        raise ValueError(f"reward_fn.math_metric is {math_metric!r}; choose one of {', '.join(MATH_METRICS)}")
    if math_metric != "math_verify" and normalised_equal(answer, gold):
        return True
    return math_metric != "deepscaler" and _math_verify(answer, gold)


def normalised_equal(answer: str, gold: str) -> bool:
    """Whether two answers agree as text without LaTeX dressing and units, or as rational numbers."""
    first, second = _normalised(answer), _normalised(gold)
    if not first or not second:
        return False
    number = _rational(first)
    return first == second or (number is not None and number == _rational(second))


def _normalised(text: str) -> str:
    text = box_content(text.strip())
    for pattern, replacement in _LATEX_DRESSING:
        text = pattern.sub(replacement, text)
    return text.rstrip(".").lower()


def _rational(text: str) -> Fraction | None:
    match = _RATIONAL.fullmatch(text)
    if match is None or match[3] is not None and int(match[3]) == 0:
        return None
    return (-1 if match[1] else 1) * Fraction(match[2]) / int(match[3] or 1)


def _math_verify(answer: str, gold: str) -> bool:
    # Imported here: it brings sympy, and question-answer data is rare.
    from math_verify import parse, verify

    return bool(verify(parse(f"${gold}$"), parse(f"${answer}$")))
