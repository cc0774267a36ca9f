"""Labelled answers: gold, prediction and whether the prediction is right. ``GRADER_CASES`` names another file."""

import json
import os
from pathlib import Path

import pytest

from tests.eval_support import SHARED

CASES = Path(os.environ.get("GRADER_CASES", SHARED / "eval" / "grader_cases.jsonl"))
# The label is disputed; the reason says why the grader's verdict stands.
EXCEPTIONS = {
    "math500-140": "1.11111111 x 10^10 is exactly the gold 11,111,111,100; the label calls it rounded",
    "gsm8k-247": "20% counts as 20 only if the question asks for a percentage, and a case carries no question",
}


def test_the_fixed_profile_agrees_with_every_labelled_case():
    if not CASES.exists():
        pytest.skip(f"no grader cases at {CASES}")
    from eval.math.equivalence import equivalent

    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    assert len(cases) >= 250
    wrong = [
        f"{case['id']}: gold {case['gold']!r}, prediction {case['prediction']!r}, expected {case['expected']}"
        for case in cases
        if equivalent(case["gold"], case["prediction"]) != case["expected"] and case["id"] not in EXCEPTIONS
    ]
    assert not wrong, "\n".join(wrong)


def test_the_exceptions_are_still_exceptions():
    if not CASES.exists():
        pytest.skip(f"no grader cases at {CASES}")
    from eval.math.equivalence import equivalent

    cases = {case["id"]: case for case in map(json.loads, CASES.read_text().splitlines())}
    for name in EXCEPTIONS.keys() & cases.keys():
        case = cases[name]
        assert equivalent(case["gold"], case["prediction"]) != case["expected"], f"{name} agrees by now"


def test_the_parity_profile_repeats_the_recorded_verdicts_of_the_published_pipeline():
    """The recorded verdicts stripped unit words from Minerva answers, which the published pipeline leaves in."""
    if not CASES.exists():
        pytest.skip(f"no grader cases at {CASES}")
    from eval.math import parity

    known = {"minerva_math-270", "minerva_math-297", "minerva_math-298", "minerva_math-302", "minerva_math-303"}
    for case in map(json.loads, CASES.read_text().splitlines()):
        answer = parity.extract(f"<answer>{case['prediction']}</answer>", "azr")
        verdict = parity.equivalent(case["gold"], answer, case["benchmark"])
        assert verdict == case["azr_pipeline_mv09_verdict"] or case["id"] in known, case["id"]
