import pytest

pytest.importorskip("verl")

from verl_populora.trainer.trackers import Trackers  # noqa: E402


def test_a_tracker_that_cannot_start_is_left_out_and_the_others_work(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", str(tmp_path / "metrics.jsonl"))
    trackers = Trackers("project", "run", ["tensorboard", "file"])
    trackers.log({"reward": 0.5}, step=1)
    assert trackers.take_failures() == 1 and trackers.take_failures() == 0
    assert "the tracker tensorboard could not be started" in caplog.text
    trackers.finish()
    assert "0.5" in (tmp_path / "metrics.jsonl").read_text()


def test_a_tracker_that_fails_is_reported_once_and_counted_each_time(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("VERL_FILE_LOGGER_PATH", "/dev/full")
    trackers = Trackers("project", "run", "file")
    for step in (1, 2, 3):
        trackers.log({"reward": 0.5}, step=step)
    assert trackers.take_failures() == 3
    assert caplog.text.count("the tracker file did not take step") == 1


def test_an_unknown_tracker_is_refused():
    with pytest.raises(ValueError, match="there is no tracker wandbb; choose from"):
        Trackers("project", "run", ["console", "wandbb"])
