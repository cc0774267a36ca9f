import errno
import os
import subprocess

import pytest

from verl_populora.trainer import checkpoints


def write(text):
    return lambda folder: (folder / "state.json").write_text(text)


def fill(content):
    return lambda folder: (folder / "weights").write_bytes(content)


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


def test_a_staged_checkpoint_does_not_count_before_it_is_committed(tmp_path):
    checkpoints.save(tmp_path, 1, write("1"), keep=1)
    staged = checkpoints.stage(tmp_path, 2, write("2"))
    assert latest_step(tmp_path) == 1
    checkpoints.commit(staged, keep=1)
    assert [p.name for p in tmp_path.iterdir()] == ["step_2"]


def test_only_what_is_partial_is_removed(tmp_path):
    checkpoints.save(tmp_path, 1, write("1"), keep=None)
    for name in (".step_2.partial", ".step_0.doomed", "notes"):
        (tmp_path / name).mkdir()
    checkpoints.remove_partial(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["notes", "step_1"]
    checkpoints.remove_partial(tmp_path / "none")


def test_a_full_disk_leaves_the_older_checkpoint_as_it_was(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    try:
        checkpoints.save(tmp_path, 1, fill(b"1" * 100_000), keep=1)
        with pytest.raises(OSError) as caught:
            checkpoints.save(tmp_path, 2, fill(b"2" * 200_000), keep=1)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(tmp_path) == ["step_1"]
        assert (tmp_path / "step_1" / "weights").read_bytes() == b"1" * 100_000
    finally:
        subprocess.run(["umount", tmp_path], check=True)
