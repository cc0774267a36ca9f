"""Rewards of attempts and proposals, for the single agent and for populations."""

import pytest

from azr_overrides.config import compose
from azr_overrides.rewards import (
    AzrProposerReward,
    FailureRateReward,
    ProposerRewardOptions,
    Weight,
    counted_accuracy,
    evaluation_score,
    learnability,
    passes_filter,
    qa_reward,
    solve_rate,
    student_reward,
    teacher_reward,
)
from azr_overrides.rewards.azr import combine
from azr_overrides.rewards.intrinsic import (
    cognitive_complexity,
    edit_distance,
    halstead_mix,
    mean_edit_distance,
    surprise,
)
from azr_overrides.rewards.qa import choice_letter, math_correct
from azr_overrides.tasks.type_counters import TypeCounters
from azr_overrides.tasks.types import Outcome, Rejection, RejectReason, Task, TaskKind, Verdict

TASK = Task("id", TaskKind.CODE_O, "def f(x):\n    return x * x", ("3",), ("9",))
INVALID = Rejection(RejectReason.SYNTAX)


def verdict(accuracy, outcome=None):
    return Verdict(outcome or (Outcome.CORRECT if accuracy == 1 else Outcome.WRONG), accuracy)


def test_attempts_earn_by_outcome():
    assert student_reward(verdict(1.0)) == 1
    assert student_reward(verdict(0.0)) == -0.5
    assert student_reward(verdict(0.0, Outcome.MALFORMED)) == -1
    with pytest.raises(ValueError, match="drop it"):
        student_reward(verdict(0.0, Outcome.UNJUDGED))


@pytest.mark.parametrize(
    ("reward_type", "half", "none"),
    [("binary", -0.5, -0.5), ("accuracy", 0.5, -0.5), ("if_one_correct", 1.0, -0.5)],
)
def test_partly_right_induction_counts_by_its_type(reward_type, half, none):
    assert student_reward(verdict(0.5), reward_type) == half
    assert student_reward(verdict(0.0), reward_type) == none
    assert student_reward(verdict(1.0), reward_type) == 1
    with pytest.raises(ValueError, match="choose one of binary"):
        counted_accuracy(1.0, "some")


def test_evaluation_scores_are_between_zero_and_one():
    assert [evaluation_score(verdict(a)) for a in (0.0, 0.5, 1.0)] == [0, 0, 1]
    assert evaluation_score(verdict(1.0, Outcome.MALFORMED)) == 0


def test_teachers_earn_the_failure_rate():
    assert teacher_reward(TASK, [1, 0, 0, 0]) == 0.75
    assert teacher_reward(TASK, [1, 1]) == 0
    assert teacher_reward(TASK, [0, 0]) == 0
    assert teacher_reward(TASK, [0, 0], unsolved_task_reward=-0.25) == -0.25
    assert teacher_reward(INVALID, []) == -1
    assert teacher_reward(TASK, [1, 0], well_formed=False) == -1


@pytest.mark.parametrize("reward", [FailureRateReward(), AzrProposerReward()])
def test_nobody_pays_for_failures_of_the_infrastructure(reward):
    with pytest.raises(ValueError, match="drop it"):
        reward(Rejection(RejectReason.UNVERIFIED), [], True, [])
    with pytest.raises(ValueError, match="no judged attempt"):
        reward(TASK, [], True, [])


def test_the_format_rule_of_proposals_can_be_switched_off():
    assert FailureRateReward()(TASK, [1, 0], False) == -1
    assert FailureRateReward(format_rule=False)(TASK, [1, 0], False) == 0.5
    assert AzrProposerReward()(TASK, [1, 0], False) == -1
    assert AzrProposerReward(ProposerRewardOptions(format_reward=False))(TASK, [1, 0], False) == 0.5


def test_learnability_vanishes_at_the_extremes():
    assert [learnability(rate) for rate in (0, 0.125, 0.875, 1)] == [0, 0.875, 0.125, 0]
    assert learnability(0, "inverse") == 1


def test_extremes_cost_half_as_in_the_code_or_nothing_as_in_the_paper():
    paper = AzrProposerReward(ProposerRewardOptions(zero_for_extremes=True))
    for accuracies in ([0, 0], [1, 1]):
        assert AzrProposerReward()(TASK, accuracies, True) == -0.5
        assert paper(TASK, accuracies, True) == 0
    assert paper(INVALID, [], True) == -1


def test_a_task_that_is_too_long_for_its_solver_counts_as_unsolved():
    too_long = Rejection(RejectReason.TOO_LONG)
    assert AzrProposerReward()(too_long, [], True) == -0.5
    assert FailureRateReward()(too_long, [], True) == -1


def test_filters_decide_by_solve_rate():
    kept = {name: [passes_filter(r, name) for r in (0, 0.5, 1)] for name in ("all", "non_one", "non_extremes")}
    assert kept == {"all": [True] * 3, "non_one": [True, True, False], "non_extremes": [False, True, False]}
    with pytest.raises(ValueError, match="valid_program_filter"):
        passes_filter(0.5, "some")


def test_intrinsic_rewards_are_weighted_and_cut_and_combined():
    assert Weight(True, 2.0, 0.5).apply(0.1) == 0.2
    assert Weight(True, 2.0, 0.5).apply(0.4) == 0.5
    expected = {"sum": 1.0, "multiply": 0.03, "sum_multiply": 0.56, "multiply_sum": 0.25}
    for method, value in expected.items():
        assert combine(0.5, [0.2, 0.3], method) == pytest.approx(value)
        assert combine(0.5, [], method) == 0.5


def test_intrinsic_rewards_see_references_and_counts():
    counters = TypeCounters()
    counters.add(TASK)
    options = ProposerRewardOptions(
        mean_edit_distance=Weight(True, 1.0, 1.0),
        answer_diversity=Weight(True, 1.0, 1.0),
        halstead=Weight(True, 1.0, 1.0),
    )
    reward = AzrProposerReward(options, counters)
    seen = reward.score(TASK, [1, 0], True, [TASK]).intrinsics
    assert seen["mean_edit_distance"] == 0 and seen["answer_diversity"] == 0 and seen["halstead"] > 0
    other = Task("o", TaskKind.CODE_O, "def f(y):\n    return [y] + [1, 2]", ("3",), ("[3, 1, 2]",))
    new = reward.score(other, [1, 0], True, [TASK]).intrinsics
    assert new["mean_edit_distance"] > 0.1 and new["answer_diversity"] == 1
    assert reward.score(other, [1, 1], True, [TASK]).intrinsics == {}, "only where something can be learnt"
    unseen = reward.with_counters(TypeCounters()).score(TASK, [1, 0], True, [TASK]).intrinsics
    assert unseen["answer_diversity"] == 1


def test_induction_counts_the_surprise_of_its_values():
    counters = TypeCounters()
    counters.add(TASK)
    task = Task("f", TaskKind.CODE_F, TASK.program, ("3", "4"), ("9", "16"), message="m")
    options = ProposerRewardOptions(
        f_input_answer_diversity=Weight(True, 1.0, 1.0), f_output_answer_diversity=Weight(True, 0.5, 1.0)
    )
    assert AzrProposerReward(options, counters).score(task, [1, 0], True).intrinsics == {
        "input_answer_diversity": 0.5,
        "output_answer_diversity": 0.25,
    }


def test_composites_can_be_compared_without_their_helpers():
    composite = Task(
        "c",
        TaskKind.CODE_O,
        f"def g_0(x): ...\n{TASK.program}",
        ("3",),
        ("9",),
        original_program=TASK.program,
    )
    weight = Weight(True, 1.0, 1.0)
    for use_original, same in ((True, True), (False, False)):
        options = ProposerRewardOptions(mean_edit_distance=weight, use_original_code_as_ref=use_original)
        distance = AzrProposerReward(options).score(composite, [1, 0], True, [TASK]).intrinsics["mean_edit_distance"]
        assert (distance == 0) is same


def test_measures_of_text_that_is_no_program_are_zero():
    for text in ("def f(", "\0", "x = " + "(" * 300):
        assert cognitive_complexity(text) == halstead_mix(text) == edit_distance(text, TASK.program) == 0
    assert mean_edit_distance(TASK.program, []) == 0
    assert surprise("1", {}) == surprise("1", {}, hierarchical=True) == 1


def test_options_come_from_azrs_keys():
    prefix = "azr.reward.generation_reward_config"
    config = compose(
        [
            f"{prefix}.intrinsic_combine_method=multiply",
            f"{prefix}.halstead_reward.coef=0.3",
            "azr.reward.zero_for_extremes=true",
        ]
    )
    options = ProposerRewardOptions.from_config(config)
    assert (options.intrinsic_combine_method, options.halstead.coef, options.zero_for_extremes) == (
        "multiply",
        0.3,
        True,
    )
    with pytest.raises(ValueError, match="generation_accuracy_convertion is 'two'; choose one of one_minus"):
        ProposerRewardOptions(generation_accuracy_convertion="two")


def test_solve_rates_count_by_type():
    assert solve_rate([1.0, 0.5, 0.0, 1.0]) == 0.5
    assert solve_rate([1.0, 0.5, 0.0, 1.0], "accuracy") == 0.625


@pytest.mark.parametrize(
    ("style", "rewards"),
    [("conditional", (-1, -1, -0.5, 1)), ("addition", (0, 1, 0.5, 1.5)), ("multiply", (0, 0, 0, 1))],
)
def test_question_answer_rewards_combine_format_and_correctness(style, rewards):
    completions = (
        "<answer>1</answer>",
        "<answer>2</answer>",
        "<think></think><answer>1</answer>",
        "<think></think><answer>2</answer>",
    )
    got = [qa_reward(text, "2", extraction_type=f"answer_{style}", math_metric="deepscaler") for text in completions]
    assert tuple(got) == rewards
    tested = [
        qa_reward(text, "2", extraction_type=f"answer_{style}", math_metric="deepscaler", training=False)
        for text in completions
    ]
    assert tested == [0, 1, 0, 1]


def test_multiple_choice_is_compared_by_letter():
    assert [choice_letter(text) for text in ("B", "(c) is a trap, (d).", "answer: b", "42")] == [
        "B",
        "D",
        "B",
        "",
    ]
    text = "<think></think><answer>It is (b)</answer>"
    assert qa_reward(text, "B", extraction_type="answer_conditional", metric="mc") == 1
    assert qa_reward(text.replace("(b)", "42"), "", extraction_type="answer_conditional", metric="mc") == -0.5


@pytest.mark.parametrize(
    ("answer", "gold", "deepscaler", "math_verify"),
    [
        ("0.5", r"\frac{1}{2}", True, True),
        (r"\boxed{12,345}", "12345", True, True),
        (r"50\%", "50", True, None),
        ("x+1", "1+x", False, True),
        ("3", "4", False, False),
        ("-1/2", r"-\dfrac12", True, True),
        ("1/0", "1/0", True, None),
    ],
)
def test_mathematical_answers(answer, gold, deepscaler, math_verify):
    assert math_correct(answer, gold, "deepscaler") is deepscaler
    if math_verify is not None:
        assert math_correct(answer, gold, "math_verify") is math_verify
        assert math_correct(answer, gold, "union") is (deepscaler or math_verify)


def test_unknown_metrics_are_refused():
    with pytest.raises(ValueError, match="math_metric is 'guess'"):
        math_correct("1", "1", "guess")
    with pytest.raises(ValueError, match="choose math or mc"):
        qa_reward("", "", extraction_type="answer_conditional", metric="poem")
    with pytest.raises(ValueError, match="has to end in"):
        qa_reward("", "", extraction_type="answer_power")
