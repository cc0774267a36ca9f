import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_populora.selfplay.groups import Group, Part

NAMES = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)


@given(NAMES, st.integers(1, 999), st.sampled_from(Part), st.sampled_from(["code_o", "code_f"]), NAMES)
def test_a_group_is_read_back_from_its_name(episode, adapter_id, part, kind, name):
    group = Group(episode, adapter_id, part, kind, name)
    assert Group.parse(group.uid) == group


def test_verl_finds_the_episode_and_the_group_in_a_sample_key():
    uid = Group("s3e0007", 2, Part.SOLVE, "code_o", "p1").uid
    key = f"{uid}_5_0"
    assert key.split("_")[0] == "s3e0007"  # verl's replay buffer
    assert key.rsplit("_", 2)[0] == uid  # verl's advantage


def test_padding_rows_belong_to_no_group():
    assert Group.parse("pad0a1b") is None


@pytest.mark.parametrize("uid", ["", "s1e1", "s1e1_x:solve.code-o.p1", "s1e1_1:other.code-o.p1"])
def test_other_names_are_refused(uid):
    with pytest.raises(ValueError):
        Group.parse(uid)


def test_names_with_a_separator_are_refused():
    with pytest.raises(ValueError, match="separates"):
        Group("s1_e1", 1, Part.SOLVE, "code_o", "p1")
