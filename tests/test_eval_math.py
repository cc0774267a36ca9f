import time

import pytest

from eval.data.loaders import load_problems
from eval.data.registry import BENCHMARKS
from eval.math.equivalence import equivalent
from eval.math.grader import MathItem, grade_math
from eval.math.normalize import normalize
from eval.types import Profile, Status
from tests.eval_support import BENCHMARK_DATA, MATH_SETS, needs_benchmark_data

STYLES = {
    "base": "Adding it all up.\nTherefore the result is $\\boxed{%s}$.",
    "chat": "Step 1: a guess, \\boxed{1}. Step 2: no.\n\n**Answer:** \\[\\boxed{%s}\\]",
    "azr": "so maybe \\boxed{0} </think> <answer> It is \\boxed{%s} </answer>",
    "azr without box": "<think> ok </think> <answer>%s</answer>",
}


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("4.5e33", r"4.5 \times 10^{33} \mathrm{~erg} / \mathrm{s}"),
        ("90^\\circ", "90°"),
        ("18", "18 eggs"),
        ("3159.0", r"3\,159"),
        ("(3,4]", r"3 < x \le 4"),
        (r"(-\infty, 2) \cup (3, \infty)", r"x<2 \text{ or } x>3"),
        (r"\text{(C)}", "C."),
        ("52_8", r"52_{\text{eight}}"),
        (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}"),
        (r"\frac{1}{2a}(\exp{a*t} - \exp{-a*t})", r"\frac{\sinh(at)}{a}"),
        (r"y^{\prime}+r y-r x(t)=0", "y' + ry = rx(t)"),
        (r"17.5%", "0.175"),
    ],
)
def test_forms_that_the_parser_alone_misreads_are_equal(gold, prediction):
    assert equivalent(gold, prediction)


@pytest.mark.parametrize(
    ("gold", "prediction"),
    [
        ("18", r"18\%"),
        ("52_8", "52_9"),
        (r"\text{(E)}", "e"),
        ("5.0", "4.9999999"),
        ("(2,4)", "(4,2)"),
        ("1,3,5", "1,3"),
        ("(3,4]", "[3,4]"),
        (r"\lfloor x\rfloor+1", r"\lceil x\rceil"),
        ("7.6 Z", "7.6"),
        ("3", ""),
        ("3", "\\boxed"),
    ],
)
def test_different_answers_stay_different(gold, prediction):
    assert not equivalent(gold, prediction)


def test_a_percent_sign_counts_when_the_question_asks_for_a_percentage():
    assert equivalent("20", r"20\%", question="By what percent did it grow?")
    assert not equivalent("20", r"20\%", question="How many apples are left?")


def test_normalising_twice_changes_nothing_more():
    for text in (r"4.5 \times 10^{33} \mathrm{~erg}", r"\$32,\!348", "x' = kx-a", r"864 \mbox{ inches}^2"):
        assert normalize(normalize(text)) == normalize(text)


@needs_benchmark_data
@pytest.mark.parametrize("style", STYLES)
def test_every_gold_answer_verifies_against_itself(style):
    items = []
    for name in MATH_SETS:
        benchmark = BENCHMARKS[name]
        for problem in load_problems(benchmark, [BENCHMARK_DATA / f"{name}.jsonl"]):
            text = STYLES[style].replace("%s", problem.gold)
            key = f"{name}/{problem.problem_id}"
            items.append(MathItem(key, name, problem.question, problem.gold, text, "azr"))
    assert len(items) == 2866
    wrong = [verdict for verdict in grade_math(items, Profile.FIXED, workers=2) if verdict.status is not Status.CORRECT]
    assert not wrong


@needs_benchmark_data
def test_a_wrong_answer_is_wrong_for_every_problem():
    """Answers of the next problem in the file, where the two golds differ."""
    for name in ("math500", "minerva_math", "olympiadbench"):
        problems = load_problems(BENCHMARKS[name], [BENCHMARK_DATA / f"{name}.jsonl"])[:80]
        items = [
            MathItem(str(index), name, one.question, one.gold, f"\\boxed{{{other.gold}}}", "azr")
            for index, (one, other) in enumerate(zip(problems, problems[1:], strict=False))
            if normalize(one.gold) not in normalize(other.gold)  # 5 and x=5 are the same answer
        ]
        right = [verdict for verdict in grade_math(items, Profile.FIXED, workers=2) if verdict.status is Status.CORRECT]
        assert not right, name


def _slow(*_: object) -> bool:
    time.sleep(60)
    return True


def test_an_endless_comparison_is_stopped_and_counted(monkeypatch):
    monkeypatch.setattr("eval.math.grader.judge", _slow)
    items = [
        MathItem("a", "math500", "", "1", r"\boxed{2}", "azr"),
        MathItem("b", "math500", "", "1", "no answer here", "azr"),
    ]
    verdicts = list(grade_math(items, Profile.FIXED, workers=1, time_limit_s=1.0))
    assert [verdict.status for verdict in verdicts] == [Status.TIMEOUT, Status.NO_ANSWER]


def test_deep_nesting_does_not_end_the_run():
    nested = "(" * 900 + "1" + ")" * 900
    items = [
        MathItem("nested", "math500", "", "1", f"\\boxed{{{nested}}}", "azr"),
        MathItem("tower", "math500", "", "2", r"\boxed{9^{9^{9^{9^{9^9}}}}}", "azr"),
        MathItem("fine", "math500", "", r"\frac{1}{2}", r"\boxed{0.5}", "azr"),
    ]
    verdicts = {v.key: v.status for v in grade_math(items, Profile.FIXED, workers=1, time_limit_s=10.0)}
    assert verdicts["fine"] is Status.CORRECT
    assert verdicts["nested"] is not Status.NO_ANSWER
    assert verdicts["tower"] is not Status.CORRECT
