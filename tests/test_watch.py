"""The terminal view shows the last step of a run, redraws as the run goes on and ends with it."""

import io
import json
import threading

import pytest
from rich.console import Console

from tests.selfplay_simulator import simulate
from verl_populora.report.data import load_run
from verl_populora.rundir import RunReader, RunWriter
from verl_populora.watch import frame, main, sparkline


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return simulate(tmp_path_factory.mktemp("watch") / "2t2s", steps=22)


def text_of(renderable, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_frame_shows_the_last_step(run):
    text = text_of(frame(load_run(run)))
    last = RunReader(run).metrics()[-1]
    matches = [match for match in RunReader(run).matches() if match["step"] == 22]
    born = {record["seat"]: record["name"] for record in RunReader(run).lineage()}
    assert "step 22" in text and "in progress" in text
    assert f"{last['tasks/solve_rate']:.2f}" in text and f"{last['member/student1/mu']:.2f}" in text
    assert all(name in text for name in born.values())
    for match in matches:
        assert f"{match['expected']:.2f}" in text and f"{match['valid']}/{match['tasks']}" in text


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_line_is_longer_than_the_terminal(run, width):
    assert max(map(len, text_of(frame(load_run(run)), width).splitlines())) <= width


def test_a_warning_is_shown_with_its_advice(tmp_path):
    path = simulate(tmp_path / "single", teachers=0, students=0, collapse=True)
    text = text_of(frame(load_run(path)))
    assert "collapses" in text and "self_calibration" in text and "population=1t1s" in text


def test_a_run_that_has_just_started_is_shown(tmp_path):
    RunWriter(tmp_path).config({"trainer": {"total_training_steps": 30}})
    assert "step 0 of 30" in text_of(frame(load_run(tmp_path)))


def test_the_live_view_follows_the_run_to_its_end(tmp_path, capsys):
    writer = RunWriter(tmp_path)
    writer.run_info({"seed": 1})
    writer.metrics(1, {"tasks/solve_rate": 0.25})

    def go_on():
        writer.metrics(2, {"tasks/solve_rate": 0.75})
        writer.run_info({"seed": 1, "exit_reason": "finished"})

    ending = threading.Timer(0.3, go_on)
    ending.start()
    assert main([str(tmp_path), "--interval", "0.05"]) == 0
    ending.join()
    shown = capsys.readouterr().out
    assert "step 2" in shown and "finished" in shown and "0.75" in shown


def test_the_command_prints_one_frame_and_refuses_what_is_no_run(run, tmp_path, capsys):
    assert main([str(run), "--once"]) == 0
    assert "step 22" in capsys.readouterr().out
    assert main([str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_a_sparkline_spans_lowest_to_highest_and_leaves_gaps():
    assert sparkline([0.0, None, 1.0, 0.5]) == "▁ █▅"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([None]) == "" and len(sparkline(list(range(100)), 32)) == 32
    assert json.dumps(sparkline([1, 2])) == '"\\u2581\\u2588"'
