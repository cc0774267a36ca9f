"""Whether two mathematical answers are the same answer (profile ``fixed``).

math-verify compares single expressions; this module decides what the expressions are. It is meant to run in a worker
process that can be killed: sympy has no time limit of its own.
"""

import logging
import random
import re
from typing import Any

import sympy
from math_verify import parse, verify

from eval.math.normalize import is_percent, normalize, plain_number, without_percent
from eval.math.structure import (
    as_interval,
    based_number,
    choice_letter,
    expand_plus_minus,
    is_interval,
    plain_words,
    split_list,
    text_answer,
    tuple_components,
    without_left_side,
)

logging.getLogger("math_verify").setLevel(logging.ERROR)
_MAX_LENGTH = 2_000  # characters; a longer answer is no answer
_MAX_ELEMENTS = 50
_SAMPLE_POINTS = 4
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)  # may differ at integers only, which no random point is


def equivalent(gold: str, prediction: str, question: str = "") -> bool:
    """True if ``prediction`` states the same answer as ``gold``.

    ``question`` is used for one thing: a percent sign that the gold lacks is accepted only if a percentage was asked.
    """
    if len(prediction) > _MAX_LENGTH:
        return False
    if is_percent(gold):
        return _same_percentage(gold, prediction)
    if is_percent(prediction):
        if not is_percent(question):
            return False
        prediction = without_percent(prediction)
    gold, prediction = normalize(gold), normalize(prediction)
    if not prediction:
        return False
    if gold == prediction:
        return True
    for rule in (_as_choices, _as_words, _as_based_numbers, _as_exact_numbers, _as_intervals):
        verdict = rule(gold, prediction)
        if verdict is not None:
            return verdict
    return _same_lists(without_left_side(gold), without_left_side(prediction))


def _same_percentage(gold: str, prediction: str) -> bool:
    """``8\\%`` is also accepted as 8 and as 0.08: both are in use."""
    reference = plain_number(normalize(without_percent(gold)))
    given = plain_number(normalize(without_percent(prediction)))
    if reference is None or given is None:
        return equivalent(without_percent(gold), without_percent(prediction))
    return given == reference or (not is_percent(prediction) and given == reference / 100)


def _as_choices(gold: str, prediction: str) -> bool | None:
    letter = choice_letter(gold)
    return None if letter is None else letter == choice_letter(prediction)


def _as_words(gold: str, prediction: str) -> bool | None:
    words = text_answer(gold)
    if words is None:
        return None
    given = plain_words(prediction)
    return given == words or given.startswith(words + " ")


def _as_based_numbers(gold: str, prediction: str) -> bool | None:
    reference, given = based_number(gold), based_number(prediction)
    if reference is None or given is None or not (reference.base or given.base):
        return None
    same_base = not given.base or not reference.base or given.base == reference.base
    return same_base and reference.digits.lstrip("0") == given.digits.lstrip("0")


def _as_exact_numbers(gold: str, prediction: str) -> bool | None:
    """Decimal literals are compared exactly: 4.9999999 is not 5, and ``8 0 9`` is not a number."""
    reference, given = plain_number(gold), plain_number(prediction)
    if reference is not None and re.fullmatch(r"\d+(?: \d+)+", prediction):
        return False
    return None if reference is None or given is None else reference == given


def _as_intervals(gold: str, prediction: str) -> bool | None:
    gold = re.sub(r"^[A-Za-z](?=[(\[][^()\[\]]*,[^()\[\]]*\]$)", "", without_left_side(gold))
    prediction = without_left_side(prediction)
    reference, given = as_interval(gold) or gold, as_interval(prediction) or prediction
    if not (is_interval(reference) and is_interval(given)) or (reference == gold and given == prediction):
        return None if gold != prediction else True
    return _same_expression(reference, given)


def _same_lists(gold: str, prediction: str) -> bool:
    references = expand_plus_minus(split_list(gold))
    answers = expand_plus_minus(split_list(prediction))
    components = tuple_components(answers[0]) if len(answers) == 1 else None
    if len(references) > 1 and components and not tuple_components(references[0]):
        answers = components
    if len(references) == 1 and len(answers) > 1 and tuple_components(references[0]):
        answers = [f"({', '.join(answers)})"]
    if max(len(references), len(answers)) > _MAX_ELEMENTS or len(references) != len(answers):
        return _same_expression(gold, prediction) if len(references) == 1 or len(answers) == 1 else False
    remaining = list(references)
    for answer in answers:
        match = next((reference for reference in remaining if _same_expression(reference, answer)), None)
        if match is None:
            return False
        remaining.remove(match)
    return True


def _same_expression(gold: str, prediction: str) -> bool:
    if gold.replace(" ", "") == prediction.replace(" ", ""):
        return True
    exact = _as_exact_numbers(gold, prediction)
    if exact is not None:
        return exact
    if r"\ln" in gold + prediction:
        gold, prediction = (re.sub(r"\\log(?!\s*_|[a-z])", r"\\ln", side) for side in (gold, prediction))
    reference, given = _parse(gold), _parse(prediction)
    if verify(reference, given, allow_set_relation_comp=True, timeout_seconds=None):
        return True
    return _agree_at_points(reference, given)


def _parse(text: str) -> list:
    return parse(rf"\boxed{{{text}}}", parsing_timeout=None)  # pyright: ignore[reportArgumentType]


def _agree_at_points(gold: list, prediction: list) -> bool:
    """Expressions in the same symbols that agree to 25 digits at random points, where simplification gave up."""
    left = next((item for item in gold if isinstance(item, sympy.Expr)), None)
    right = next((item for item in prediction if isinstance(item, sympy.Expr)), None)
    if left is None or right is None or not left.free_symbols or left.free_symbols != right.free_symbols:
        return False
    stream = random.Random(0)
    if left.has(*_STEPS) or right.has(*_STEPS):
        return False
    symbols = sorted(left.free_symbols, key=str)
    for _ in range(_SAMPLE_POINTS):
        point: dict[Any, Any] = {symbol: sympy.Rational(stream.randint(100, 900), 701) for symbol in symbols}
        values = [sympy.N(side.subs(point), 30) for side in (left, right)]
        if not all(value.is_number and value.is_finite for value in values):
            return False
        if abs(values[0] - values[1]) > sympy.Float("1e-25") * (1 + abs(values[0])):
            return False
    return True
