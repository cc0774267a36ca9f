"""Advantages: formulas against a direct computation, and what groups of equal rewards get."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_populora.selfplay.advantages import EPSILON, reinforce_group_baseline, task_relative

samples = st.lists(
    st.tuples(st.sampled_from([-1.0, -0.5, 0.125, 0.5, 1.0]), st.integers(0, 3), st.integers(1, 50)),
    min_size=1,
    max_size=30,
)


@given(samples)
@settings(deadline=None)
def test_group_baseline_follows_its_formula(rows):
    scores, groups, lengths = (np.array(column) for column in zip(*rows, strict=True))
    members = [group % 2 for group in groups]
    got = reinforce_group_baseline(scores, list(groups), members, lengths)
    centred = np.array([r - scores[groups == g].mean() for r, g in zip(scores, groups, strict=True)])
    for index, member in enumerate(members):
        mine = np.array(members) == member
        scale = np.sqrt((lengths * centred**2)[mine].sum() / lengths[mine].sum() + EPSILON)
        assert got[index] == pytest.approx(centred[index] / scale, abs=1e-6)


@given(samples)
@settings(deadline=None)
def test_task_relative_whitens_the_tokens_of_each_cell(rows):
    scores, cells, lengths = (np.array(column) for column in zip(*rows, strict=True))
    got = task_relative(scores, list(cells), lengths)
    for cell in set(cells):
        mine = cells == cell
        tokens = np.repeat(got[mine], lengths[mine])
        assert tokens.sum() == pytest.approx(0, abs=1e-6 * len(tokens))
        if np.ptp(scores[mine]) > 0:
            assert tokens.var(ddof=1) == pytest.approx(1, abs=1e-3)


def test_groups_of_equal_rewards_get_exactly_nothing_however_long_others_are():
    scores = np.array([0.1, 0.1, 0.1, 1.0, -1.0, 0.7])
    groups = ["equal", "equal", "equal", "mixed", "mixed", "single"]
    got = reinforce_group_baseline(scores, groups, ["a"] * 6, np.array([10, 10, 10, 500, 1, 3]))
    assert (got[[0, 1, 2, 5]] == 0).all()
    assert got[3] > 0 > got[4]


def test_a_member_is_scaled_by_its_own_samples_only():
    scores, lengths = np.array([1.0, -1.0, 0.01, -0.01]), np.ones(4)
    alone = reinforce_group_baseline(scores[2:], ["y", "y"], ["b", "b"], lengths[2:])
    together = reinforce_group_baseline(scores, ["x", "x", "y", "y"], ["a", "a", "b", "b"], lengths)
    np.testing.assert_array_equal(together[2:], alone)
    assert together[0] == pytest.approx(1)


def test_order_does_not_matter():
    generator = np.random.default_rng(0)
    scores, lengths = generator.choice([-1, -0.5, 1], 24).astype(float), generator.integers(1, 9, 24)
    groups, order = np.arange(24) // 4, generator.permutation(24)
    members = groups % 3
    straight = reinforce_group_baseline(scores, list(groups), list(members), lengths)
    shuffled = reinforce_group_baseline(scores[order], list(groups[order]), list(members[order]), lengths[order])
    np.testing.assert_allclose(shuffled, straight[order], atol=1e-12)


def test_rows_that_fill_up_a_batch_are_left_out():
    scores, lengths = np.array([1.0, -1.0, 5.0]), np.array([2, 2, 0])
    assert reinforce_group_baseline(scores, ["g", "g", "pad"], [1, 1, None], lengths).tolist() == pytest.approx(
        [1, -1, 0]
    )
    assert task_relative(scores, ["c", "c", None], lengths)[2] == 0


def test_a_cell_of_one_token_gets_nothing():
    assert task_relative(np.array([1.0]), ["c"], np.array([1])).tolist() == [0]


@pytest.mark.parametrize(
    ("scores", "lengths", "message"),
    [
        ([1.0, 2.0], [1], "one a sample"),
        ([1.0, float("nan")], [1, 1], r"not finite in rows \[1\]"),
        ([1.0, 2.0], [1, 0], r"without response tokens: \[1\]"),
    ],
)
def test_impossible_batches_are_refused(scores, lengths, message):
    with pytest.raises(ValueError, match=message):
        task_relative(np.array(scores), ["c"] * len(scores), np.array(lengths))


def test_a_group_of_two_members_is_refused():
    with pytest.raises(ValueError, match="has samples of 1 and of 2"):
        reinforce_group_baseline(np.array([0.0, 1.0]), ["g", "g"], [1, 2], np.array([1, 1]))
