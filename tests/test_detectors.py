"""Each detector fires on the failure it is named after, stays silent otherwise, and says what to try."""

import math
import random

import pytest

from verl_populora.detectors import DETECTORS, DetectorSettings, complexity_change, detect, warning_metrics

STEPS = 40


def history(steps=STEPS, **changes):
    """A healthy run; ``changes`` map a metric ('/' as '__') to a function of progress in [0, 1]."""
    noise = random.Random(0)
    rows = []
    for step in range(1, steps + 1):
        progress = step / steps
        row = {
            "step": step,
            "tasks/proposed": 24,
            "tasks/solve_rate": 0.5 + 0.2 * math.sin(step / 4) + noise.gauss(0, 0.03),
            "tasks/unsolved_rate": 0.3,
            "invalid/duplicate": 1,
            "coverage/distinct_rate": 0.8 + noise.gauss(0, 0.05),
            "coverage/new": 6 - 2 * progress + noise.gauss(0, 0.5),
            "complexity/ast_depth": 6 + progress,
            "complexity/cyclomatic": 2 + progress,
            "complexity/lines": 5 + progress,
            "complexity/variables": 2 + progress,
            "teacher/teacher1/valid_rate": 0.8,
            "teacher/teacher2/valid_rate": 0.7,
            "member/teacher1/response_length": 60 + 20 * progress,
            "member/student1/response_length": 90,
        }
        row.update({name.replace("__", "/"): change(progress) for name, change in changes.items()})
        rows.append(row)
    return rows


EASY = {"tasks__solve_rate": lambda p: 0.5 + 0.5 * p}
SIMPLER = {f"complexity__{name}": lambda p: 6 - 3 * p for name in ("ast_depth", "cyclomatic", "lines", "variables")}
NARROWER = {"coverage__new": lambda p: 6 - 5 * p}
FAILURES = {
    "self_calibration": EASY | SIMPLER | NARROWER,
    "copies": {"invalid__duplicate": lambda p: 24 * p},
    "invalid_tasks": {"teacher__teacher2__valid_rate": lambda p: 0.7 - 0.68 * min(1, 2 * p)},
    "unsolvable_tasks": {"tasks__unsolved_rate": lambda p: min(1.0, 0.3 + p)},
    "length_explosion": {"member__student1__response_length": lambda p: 90 + 300 * p},
}


def names(rows, **settings):
    return [finding.name for finding in detect(rows, DetectorSettings(**settings))]


def test_a_healthy_run_is_silent_at_every_step():
    rows = history()
    assert [names(rows[:step]) for step in range(STEPS + 1)] == [[]] * (STEPS + 1)


@pytest.mark.parametrize("name", DETECTORS)
def test_each_failure_fires_its_detector_alone(name):
    rows = history(**FAILURES[name])
    assert names(rows) == [name]
    assert names(rows[:10]) == []


def test_few_structures_are_copies_too():
    assert names(history(coverage__distinct_rate=lambda p: 0.8 - 0.7 * p)) == ["copies"]


@pytest.mark.parametrize("missing", [EASY | SIMPLER, EASY | NARROWER, SIMPLER | NARROWER])
def test_self_calibration_needs_all_three_signs(missing):
    assert names(history(**missing)) == []


def test_a_finding_says_what_was_seen_who_and_what_to_try():
    (finding,) = detect(history(**FAILURES["invalid_tasks"]))
    assert "teacher2: 2%" in finding.seen and "teacher1" not in finding.seen
    (finding,) = detect(history(**FAILURES["length_explosion"]))
    assert "student1: 2.7 times" in finding.seen
    for name, changes in FAILURES.items():
        (finding,) = detect(history(**changes))
        assert str(finding).startswith(name) and finding.seen.endswith(".") and finding.advice.endswith(".")


def test_metrics_name_every_detector():
    assert warning_metrics([]) == {f"warn/{name}": 0 for name in DETECTORS}
    fired = warning_metrics(detect(history(**FAILURES["copies"])))
    assert [name for name, value in fired.items() if value] == ["warn/copies"]


def test_a_spike_shorter_than_the_window_does_not_fire():
    rows = history()
    for row in rows[-2:]:
        row["tasks/unsolved_rate"], row["teacher/teacher1/valid_rate"] = 1.0, 0.0
    assert names(rows) == []
    assert names(rows, window=2) == ["invalid_tasks", "unsolvable_tasks"]


def test_metrics_that_were_not_measured_are_not_judged():
    assert detect([{"step": step, "tasks/solve_rate": None} for step in range(STEPS)]) == []
    assert complexity_change([{"step": step} for step in range(STEPS)], 10) is None


def test_a_step_without_a_number_does_not_hide_the_others():
    rows = history(**FAILURES["unsolvable_tasks"])
    rows[-1]["tasks/unsolved_rate"] = math.nan
    rows[-2]["tasks/unsolved_rate"] = None
    assert names(rows) == ["unsolvable_tasks"]


def test_complexity_change_is_the_mean_relative_change():
    rows = [{"complexity/lines": 4, "complexity/variables": 2}] * 2 + [
        {"complexity/lines": 6, "complexity/variables": 2}
    ] * 2
    assert complexity_change(rows, 2) == pytest.approx(0.25)
