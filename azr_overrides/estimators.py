"""The advantage estimators of this project under names that verl's configuration can choose."""

import numpy as np
import torch
from verl.trainer.ppo.core_algos import register_adv_est

from azr_overrides.prepare import POPULATION_ESTIMATOR, SINGLE_ESTIMATOR
from verl_populora.selfplay import advantages
from verl_populora.selfplay.groups import Group


@register_adv_est(POPULATION_ESTIMATOR)
def population_reinforce(token_level_rewards, response_mask, index, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE++ with the group's mean as baseline, scaled within each adapter.

    Args:
        token_level_rewards: (samples, tokens), the reward on one token of each sample.
        response_mask: (samples, tokens), 1 on response tokens.
        index: (samples,), names made by ``Group.uid``; verl's padding rows get advantage 0.

    Returns:
        Advantages and returns, both (samples, tokens) and equal.
    """
    groups = [Group.parse(uid) for uid in index]
    members = [None if group is None else group.adapter_id for group in groups]
    values = advantages.reinforce_group_baseline(
        _scores(token_level_rewards), [str(uid) for uid in index], members, _lengths(response_mask)
    )
    return _spread(values, response_mask)


@register_adv_est(SINGLE_ESTIMATOR)
def task_relative_reinforce(token_level_rewards, response_mask, index, **_) -> tuple[torch.Tensor, torch.Tensor]:
    """TRR++: REINFORCE++ with one baseline for each combination of role and task kind (Absolute Zero Reasoner).

    Arguments and results are those of ``population_reinforce``.
    """
    groups = [Group.parse(uid) for uid in index]
    cells = [None if group is None else (group.part, group.kind) for group in groups]
    values = advantages.task_relative(_scores(token_level_rewards), cells, _lengths(response_mask))
    return _spread(values, response_mask)


def _scores(token_level_rewards: torch.Tensor) -> np.ndarray:
    return token_level_rewards.sum(-1).double().cpu().numpy()


def _lengths(response_mask: torch.Tensor) -> np.ndarray:
    return response_mask.sum(-1).cpu().numpy()


def _spread(values: np.ndarray, response_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One value for each sample, on all of its response tokens."""
    column = torch.as_tensor(values, dtype=torch.float32, device=response_mask.device)
    spread = column[:, None] * response_mask
    return spread, spread
