import pytest

from verl_populora.trainer import checkpoints


def write(text):
    return lambda folder: (folder / "state.json").write_text(text)


def latest_step(root):
    found = checkpoints.latest(root)
    return found and checkpoints.step_of(found)


def test_a_checkpoint_is_found_again(tmp_path):
    assert checkpoints.latest(tmp_path / "none") is None
    checkpoints.save(tmp_path, 9, write("9"), keep=None)
    checkpoints.save(tmp_path, 10, write("10"), keep=None)
    found = checkpoints.latest(tmp_path)
    assert found is not None and checkpoints.step_of(found) == 10
    assert (found / "state.json").read_text() == "10"


def test_a_failed_write_leaves_nothing_and_keeps_the_older_one(tmp_path):
    checkpoints.save(tmp_path, 1, write("1"), keep=1)

    def fail(folder):
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError):
        checkpoints.save(tmp_path, 2, fail, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_1"]


def test_what_a_kill_left_behind_is_not_a_checkpoint(tmp_path):
    checkpoints.save(tmp_path, 1, write("1"), keep=None)
    (tmp_path / ".step_2.partial").mkdir()
    assert latest_step(tmp_path) == 1
    checkpoints.save(tmp_path, 2, write("2"), keep=None)
    assert latest_step(tmp_path) == 2


def test_old_checkpoints_are_pruned(tmp_path):
    for step in (1, 2, 10, 20):
        checkpoints.save(tmp_path, step, write(str(step)), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_10", "step_20"]


def test_the_same_step_can_be_saved_again(tmp_path):
    checkpoints.save(tmp_path, 1, write("old"), keep=None)
    checkpoints.save(tmp_path, 1, write("new"), keep=None)
    assert (tmp_path / "step_1" / "state.json").read_text() == "new"


def test_a_folder_that_cannot_be_written_is_named_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="set run_dir to another place"):
        checkpoints.check_writable(tmp_path / "file" / "run")
