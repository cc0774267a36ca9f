"""The estimators as verl calls them: tensors and group names in, one advantage on every response token out."""

import pytest
import torch

pytest.importorskip("verl")

from verl.trainer.ppo.core_algos import get_adv_estimator_fn  # noqa: E402

import azr_overrides.estimators  # noqa: E402, F401
from azr_overrides.prepare import POPULATION_ESTIMATOR, SINGLE_ESTIMATOR  # noqa: E402
from verl_populora.selfplay.groups import Group, Part  # noqa: E402


def batch(rows):
    """rows: (group, reward, response length); rewards sit on the last response token."""
    width = max(length for _, _, length in rows)
    rewards, mask = torch.zeros(len(rows), width), torch.zeros(len(rows), width)
    for i, (_, reward, length) in enumerate(rows):
        mask[i, :length] = 1
        rewards[i, length - 1] = reward
    uids = [group if isinstance(group, str) else group.uid for group, _, _ in rows]
    return {"token_level_rewards": rewards, "response_mask": mask, "index": uids, "config": None}


def group(adapter_id, name="p0", part=Part.SOLVE, kind="code_o"):
    return Group("s1e0", adapter_id, part, kind, name)


def test_a_population_is_centred_by_group_and_scaled_by_adapter():
    rows = [(group(1), 1.0, 4), (group(1), 0.0, 4), (group(2), 10.0, 4), (group(2), -10.0, 4)]
    advantages, returns = get_adv_estimator_fn(POPULATION_ESTIMATOR)(**batch(rows))
    assert advantages[:, 0].tolist() == pytest.approx([1.0, -1.0, 1.0, -1.0], abs=1e-3)
    assert torch.equal(advantages, returns)


def test_a_group_of_equal_rewards_has_no_advantage_whatever_the_lengths():
    rows = [(group(1, "p0"), 1.0, 2), (group(1, "p0"), 1.0, 9), (group(1, "p1"), 1.0, 3), (group(1, "p1"), 0.0, 7)]
    advantages, _ = get_adv_estimator_fn(POPULATION_ESTIMATOR)(**batch(rows))
    assert advantages[:2].abs().max() == 0.0
    assert advantages[2, 0] > 0 > advantages[3, 0]


def test_advantages_stand_on_response_tokens_only():
    advantages, _ = get_adv_estimator_fn(POPULATION_ESTIMATOR)(**batch([(group(1), 1.0, 2), (group(1), 0.0, 5)]))
    assert advantages[0, 2:].abs().max() == 0.0


@pytest.mark.parametrize("name", [POPULATION_ESTIMATOR, SINGLE_ESTIMATOR])
def test_padding_rows_have_no_advantage(name):
    rows = [(group(1), 1.0, 3), (group(1), 0.0, 3), ("pad0f", 5.0, 3)]
    arguments = batch(rows)
    arguments["response_mask"][2] = 0
    advantages, _ = get_adv_estimator_fn(name)(**arguments)
    assert advantages[2].abs().max() == 0.0
    assert advantages[0, 0] > 0 > advantages[1, 0]


def test_the_single_agent_has_a_baseline_for_each_role_and_kind():
    propose, solve = group(1, part=Part.PROPOSE), group(1, part=Part.SOLVE)
    rows = [(propose, 0.9, 4), (propose, 0.1, 4), (solve, 1.0, 4), (solve, 1.0, 4)]
    advantages, _ = get_adv_estimator_fn(SINGLE_ESTIMATOR)(**batch(rows))
    assert advantages[0, 0] > 0.5 > -0.5 > advantages[1, 0]
    assert advantages[2:].abs().max() == 0.0
