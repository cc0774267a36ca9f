"""When an output equals the expected one: evalplus' rules for HumanEval+ and MBPP+, LiveCodeBench's for its tests.

Both sides are decoded values or text, never objects of the program. The rules follow evalplus 0.3.1 and LiveCodeBench
``testing_util.py``; oracles of single tasks come from evalplus itself.
"""

import json
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy
from evalplus.eval import is_floats
from evalplus.eval._special_oracle import (
    MBPP_OUTPUT_NOT_NONE_TASKS,
    MBPP_OUTPUT_SET_EQ_TASKS,
    _digit_distance_nums,
    _poly,
    _surface_Area,
)

_RTOL = 1e-7
_FLOAT_ATOL = 1e-6


def evalplus_equal(dataset: str, entry_point: str, arguments: Any, output: Any, expected: Any, atol: float) -> bool:
    """Whether one output of a HumanEval+ ("humaneval") or MBPP+ ("mbpp") solution passes."""
    try:
        if dataset == "humaneval" and entry_point == "find_zero":
            (coefficients,) = arguments
            return bool(abs(_poly(coefficients, output)) <= atol)
        exact = bool(output == expected)
        if dataset == "mbpp":
            exact = _mbpp_oracle(entry_point, arguments, output, expected, exact, atol)
        if exact:
            return True
        tolerance = _FLOAT_ATOL if atol == 0 and is_floats(expected) else atol
        if tolerance == 0 or type(output) is not type(expected):
            return False
        if isinstance(expected, (list, tuple)) and len(output) != len(expected):
            return False
        return bool(numpy.allclose(output, expected, rtol=_RTOL, atol=tolerance))
    except Exception:  # the output may be anything: whatever it breaks, it is not the expected value
        return False


def _mbpp_oracle(entry_point: str, arguments: Any, output: Any, expected: Any, exact: bool, atol: float) -> bool:
    if entry_point == "are_equivalent":  # evalplus accepts any returned value for this task
        return True
    if entry_point == "sum_div":
        return exact or output == 0
    if entry_point == "surface_Area":
        return exact or abs(output - _surface_Area(*arguments)) <= atol
    if entry_point == "digit_distance_nums":
        return exact or output == _digit_distance_nums(*arguments)
    if entry_point in MBPP_OUTPUT_SET_EQ_TASKS:
        return set(output) == set(expected)
    if entry_point in MBPP_OUTPUT_NOT_NONE_TASKS:
        return output == expected if isinstance(output, bool) else expected == (output is not None)
    return exact


def lcb_call_equal(output: Any, expected_json: str) -> bool:
    """Exact equality with one JSON value; a returned tuple counts as a list, only at the top."""
    if isinstance(output, tuple):
        output = list(output)
    return bool(output == json.loads(expected_json))


def lcb_stdout_equal(output: str, expected: str) -> bool:
    """Line by line: equal text after stripping, or the same numbers as decimals."""
    lines, wanted = _lines(output), _lines(expected)
    if len(lines) != len(wanted):
        return False
    return all(line == want or _same_decimals(line, want) for line, want in zip(lines, wanted, strict=True))


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_decimals(line: str, wanted: str) -> bool:
    try:
        return [Decimal(word) for word in line.split()] == [Decimal(word) for word in wanted.split()]
    except (InvalidOperation, ValueError):
        return False
