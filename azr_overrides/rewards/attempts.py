"""What an attempt earns, and what counts as solving."""

from azr_overrides.tasks.types import Outcome, Verdict

CODE_F_REWARD_TYPES = ("binary", "accuracy", "if_one_correct")

WRONG = -0.5
MALFORMED = -1.0


def counted_accuracy(accuracy: float, code_f_reward_type: str = "binary") -> float:
    """What an accuracy in [0, 1] counts for: 1 or 0, or itself with ``accuracy``.

    Args:
        accuracy: share of hidden pairs that a code_f answer gets right; 0 or 1 for the other kinds.
        code_f_reward_type: ``binary`` (1 if all are right), ``accuracy`` (the share) or ``if_one_correct``
            (1 if any is).

    Raises ValueError for any other type.
    """
    if code_f_reward_type == "accuracy":
        return accuracy
    if code_f_reward_type == "binary":
        return float(accuracy >= 1.0)
    if code_f_reward_type == "if_one_correct":
        return float(accuracy > 0.0)
    choices = ", ".join(CODE_F_REWARD_TYPES)
    raise ValueError(f"azr.reward.code_f_reward_type is {code_f_reward_type!r}; choose one of {choices}")


def student_reward(verdict: Verdict, code_f_reward_type: str = "binary") -> float:
    """-1 for a malformed answer, -0.5 for a wrong one, else what its accuracy counts for (1, or a share).

    AZR's solver reward, and the student's reward in a population.

    Raises ValueError for an unjudged attempt, which the model must not pay for.
    """
    if verdict.outcome is Outcome.UNJUDGED:
        raise ValueError("an unjudged attempt has no reward; drop it")
    if verdict.outcome is Outcome.MALFORMED:
        return MALFORMED
    return counted_accuracy(verdict.accuracy, code_f_reward_type) or WRONG


def evaluation_score(verdict: Verdict, code_f_reward_type: str = "binary") -> float:
    """The score outside training, in [0, 1]: 0 for a wrong or malformed answer."""
    if verdict.outcome is Outcome.MALFORMED:
        return 0.0
    return counted_accuracy(verdict.accuracy, code_f_reward_type)
