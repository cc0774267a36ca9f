"""What a proposal earns in a population, and the interface of all proposal rewards."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from azr_overrides.rewards.attempts import counted_accuracy
from azr_overrides.tasks.types import Rejection, RejectReason, Task

INVALID = -1.0


class ProposerReward(Protocol):
    """Scores one proposal."""

    def __call__(
        self,
        outcome: Task | Rejection,
        accuracies: Sequence[float],
        well_formed: bool,
        references: Sequence[Task],
    ) -> float:
        """The reward.

        Args:
            outcome: the task, or why there is none.
            accuracies: in [0, 1], one for each judged attempt at the task; at least one for a task.
            well_formed: whether the proposal's completion obeys the format rule.
            references: the tasks that the proposer was shown.

        Raises:
            ValueError: nothing is known about the proposal (verification failed, or no attempt was judged).
        """
        ...


def solve_rate(accuracies: Sequence[float], code_f_reward_type: str = "binary") -> float:
    """Mean of what the attempts count for, in [0, 1]. Raises ValueError without attempts."""
    if not accuracies:
        raise ValueError("no judged attempt, so no solve rate; drop the proposal")
    return sum(counted_accuracy(accuracy, code_f_reward_type) for accuracy in accuracies) / len(accuracies)


def refuse_unverified(outcome: Task | Rejection) -> None:
    """Raise ValueError if the infrastructure failed, which no proposer must pay for."""
    if isinstance(outcome, Rejection) and outcome.reason is RejectReason.UNVERIFIED:
        raise ValueError(f"an unverified proposal has no reward; drop it ({outcome.detail})")


def teacher_reward(
    outcome: Task | Rejection,
    accuracies: Sequence[float],
    *,
    well_formed: bool = True,
    unsolved_task_reward: float = 0.0,
    code_f_reward_type: str = "binary",
) -> float:
    """The matched student's failure rate, with exceptions.

        -1                      no valid task, or a malformed completion
        unsolved_task_reward    no attempt solved the task
        1 - solve rate          otherwise

    Source: PopuLoRA (arXiv 2605.16727).
    """
    refuse_unverified(outcome)
    if isinstance(outcome, Rejection) or not well_formed:
        return INVALID
    rate = solve_rate(accuracies, code_f_reward_type)
    return 1.0 - rate if rate > 0 else unsolved_task_reward


@dataclass(frozen=True, slots=True)
class FailureRateReward:
    """`teacher_reward` as a `ProposerReward`."""

    unsolved_task_reward: float = 0.0
    code_f_reward_type: str = "binary"
    format_rule: bool = True  # azr.reward.generation_reward_config.format_reward

    def __call__(
        self,
        outcome: Task | Rejection,
        accuracies: Sequence[float],
        well_formed: bool,
        references: Sequence[Task] = (),
    ) -> float:
        return teacher_reward(
            outcome,
            accuracies,
            well_formed=well_formed or not self.format_rule,
            unsolved_task_reward=self.unsolved_task_reward,
            code_f_reward_type=self.code_f_reward_type,
        )
