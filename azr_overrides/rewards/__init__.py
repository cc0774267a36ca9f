"""Rewards: pure functions from verdicts and solve rates to numbers.

`student_reward` scores attempts, `teacher_reward` proposals in a population, `AzrProposerReward` proposals of
the single agent, `qa_reward` answers to question-answer data.
"""

from azr_overrides.rewards.attempts import counted_accuracy, evaluation_score, student_reward
from azr_overrides.rewards.azr import (
    AzrProposerReward,
    ProposerRewardOptions,
    ProposerScore,
    Weight,
    learnability,
    passes_filter,
)
from azr_overrides.rewards.qa import qa_reward
from azr_overrides.rewards.teacher import FailureRateReward, ProposerReward, solve_rate, teacher_reward

__all__ = [
    "AzrProposerReward",
    "FailureRateReward",
    "ProposerReward",
    "ProposerRewardOptions",
    "ProposerScore",
    "Weight",
    "counted_accuracy",
    "evaluation_score",
    "learnability",
    "passes_filter",
    "qa_reward",
    "solve_rate",
    "student_reward",
    "teacher_reward",
]
