"""Statistics and tables, on verdicts written by the test."""

import csv
import io
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from eval.data.registry import BENCHMARKS
from eval.grade import grade_key, grader_name
from eval.members import EvalMember
from eval.render import csv_text, markdown, write_table
from eval.results import collect
from eval.stats import cell_interval, group_interval, mean_or_none, paired_difference, wilson
from eval.store import SCHEMA, PlanEntry, Store, write_json
from eval.table import build_table
from eval.types import Completion, Grade, ModelKind, Profile, Status, UsageError


def generator() -> np.random.Generator:
    return np.random.default_rng(7)


def test_wilson_intervals_equal_published_values():
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    for correct, n, low, high in ((81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611)):
        interval = wilson(correct, n)
        assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_bootstrap_intervals_have_the_width_of_the_normal_approximation():
    scores = np.repeat([1.0, 0.0], [120, 280])
    interval = group_interval({"x": scores[None, :]}, generator())
    half = 1.96 * np.sqrt(0.3 * 0.7 / 400)
    assert interval.value == pytest.approx(0.3)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=0.1)


def test_pairing_makes_the_interval_of_a_difference_narrow():
    rng = generator()
    first = (rng.random(500) < 0.5).astype(float)
    second = first.copy()
    second[:10] = 1 - second[:10]
    paired = paired_difference({"x": first[None, :]}, {"x": second[None, :]}, generator())
    unpaired_width = 2 * 1.96 * np.sqrt(2 * 0.25 / 500)
    assert paired.high - paired.low < unpaired_width / 3
    same = paired_difference({"x": first[None, :]}, {"x": first[None, :]}, generator())
    assert (same.value, same.low, same.high, same.positive) == (0.0, 0.0, 0.0, 0.5)


def test_members_add_to_the_uncertainty_of_a_population_mean():
    one_strong = np.zeros((4, 200))
    one_strong[0] = 1.0
    assert group_interval({"x": one_strong}, generator()).high > 0.5
    alike = np.tile((np.arange(200) % 4 == 0).astype(float), (4, 1))
    assert group_interval({"x": alike}, generator()).high < 0.35


def test_a_paired_comparison_refuses_other_items():
    with pytest.raises(ValueError, match="same items"):
        paired_difference({"x": np.zeros((1, 3))}, {"x": np.zeros((1, 4))}, generator())


def test_several_samples_get_a_bootstrap_interval_and_missing_means_stay_missing():
    interval = cell_interval(np.array([0.25, 0.5, 0.75, 1.0]), generator())
    assert interval.low < interval.value == 0.625 < interval.high
    assert (
        mean_or_none([0.5, None]) is None
        and mean_or_none([]) is None
        and mean_or_none([0.2, 0.4]) == pytest.approx(0.3)
    )


def write_evaluation(folder: Path, right: dict[str, dict[str, list[bool]]], drop: int = 0) -> Path:
    """An output directory with a verdict for each (member, benchmark, problem); ``drop`` verdicts are left out."""
    store = Store(folder)
    members = [
        EvalMember(
            name,
            name if name in ("base", "baseline") else "population",
            ModelKind.AZR,
            "" if name == "base" else "adapter",
            role="teacher" if name.startswith("teacher") else "",
        )
        for name in right
    ]
    benchmarks = {name: {"n": 0, "sha256": {}} for rows in right.values() for name in rows}
    sampling = {"samples": 1, "temperature": 0.0, "max_tokens_cap": 0}
    run = {
        "schema": SCHEMA, "profile": "fixed", "sampling": sampling, "limit": 0, "pinned_data": True,
        "members": [asdict(member) for member in members], "benchmarks": benchmarks, "base": {"model": "m"},
    }  # fmt: skip
    write_json(store.run_path, run)
    entries, grades = [], []
    for member, rows in right.items():
        for benchmark, verdicts in rows.items():
            for index, correct in enumerate(verdicts):
                entry = PlanEntry(f"{member}-{benchmark}-{index}", member, benchmark, f"{index:04d}", 0, "math-azr")
                entries.append(entry)
                grades.append((benchmark, Grade(grade_key(entry), Status.CORRECT if correct else Status.WRONG, "x")))
    (folder / "plan.jsonl").write_text("".join(json.dumps(asdict(entry)) + "\n" for entry in entries))
    with store.completion_appender("all") as appender:
        for entry in entries:
            appender.append(asdict(Completion(entry.key, "text", "stop", 5, 2)))
    for benchmark, verdict in grades[: len(grades) - drop]:
        path = store.grades_path(grader_name(benchmark, Profile.FIXED))
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as stream:
            stream.write(json.dumps(asdict(verdict)) + "\n")
    return folder


def verdicts(correct: int, n: int = 20) -> list[bool]:
    return [index < correct for index in range(n)]


def test_rows_cover_base_baseline_mean_best_weakest_and_each_member(tmp_path):
    right = {
        "base": {"math500": verdicts(4), "gsm8k": verdicts(6)},
        "baseline": {"math500": verdicts(8), "gsm8k": verdicts(8)},
        "teacher1": {"math500": verdicts(6), "gsm8k": verdicts(10)},
        "student1": {"math500": verdicts(12), "gsm8k": verdicts(14)},
    }
    table = build_table([collect(write_evaluation(tmp_path / "a", right))])
    by_sort = {row.sort: row for row in table.rows}
    assert by_sort["base"].cells["math500"].value == 0.2
    assert by_sort["population mean"].cells["math500"].value == pytest.approx(0.45)
    assert by_sort["best"].members == ("student1",) and by_sort["weakest"].members == ("teacher1",)
    assert by_sort["population mean"].common is not None
    assert by_sort["population mean"].common.value == pytest.approx((0.45 + 0.6) / 2)
    assert table.common_benchmarks == ["math500", "gsm8k"]
    against_base = next(c for c in table.comparisons if c.first == "best: student1" and c.second == "base")
    assert against_base.common.value == pytest.approx(0.4) and against_base.common.low > 0


def test_means_need_all_their_benchmarks_and_follow_the_published_formula(tmp_path):
    from eval.data.registry import BENCHMARKS

    right = {"base": {name: verdicts(index + 1) for index, name in enumerate(BENCHMARKS)}}
    row = build_table([collect(write_evaluation(tmp_path / "a", right))]).rows[0]
    assert row.code == pytest.approx(np.mean([1, 2, 3]) / 20)
    assert row.math == pytest.approx(np.mean([4, 5, 6, 7, 8, 10]) / 20)
    assert row.math_with_gsm8k == pytest.approx(np.mean([4, 5, 6, 7, 8, 9, 10]) / 20)
    assert row.overall == pytest.approx((np.mean([1, 2, 3]) + np.mean([4, 5, 6, 7, 8, 10])) / 40)
    del right["base"]["livecodebench"]
    part = build_table([collect(write_evaluation(tmp_path / "b", right))]).rows[0]
    assert part.code is None and part.overall is None and part.math == row.math


def test_what_was_not_finished_is_not_run_and_never_zero(tmp_path):
    right = {
        "base": {"math500": verdicts(4), "gsm8k": verdicts(5)},
        "m": {"math500": verdicts(9), "gsm8k": verdicts(0)},
    }
    table = build_table([collect(write_evaluation(tmp_path / "a", right, drop=1))])
    row = next(row for row in table.rows if row.members == ("m",))
    assert "gsm8k" not in row.cells and table.common_benchmarks == ["math500"]
    text = markdown(table)
    assert "not run" in text and "not finished" in text
    rows = list(csv.DictReader(io.StringIO(csv_text(table))))
    assert not [r for r in rows if r["row"] == "m" and r["benchmark"] == "gsm8k"]


def test_several_runs_answer_whether_a_larger_population_is_better(tmp_path):
    small = {"base": {"math500": verdicts(4)}, "student1": {"math500": verdicts(10)}}
    large = {
        "base": {"math500": verdicts(4)},
        "student1": {"math500": verdicts(10)},
        "student2": {"math500": verdicts(9)},
    }
    one = collect(write_evaluation(tmp_path / "1t1s", small))
    four = collect(write_evaluation(tmp_path / "4t4s", large))
    table = build_table([one, four])
    pairs = {(c.first, c.second): c.common for c in table.comparisons}
    difference = next(
        value for (first, second), value in pairs.items() if "4t4s" in first + second and "1t1s" in first + second
    )
    assert abs(difference.value) == pytest.approx(0.025)
    with pytest.raises(UsageError, match="different labels"):
        build_table([one, one])


def test_runs_that_asked_differently_are_not_compared(tmp_path):
    right = {"base": {"math500": verdicts(4)}}
    one = collect(write_evaluation(tmp_path / "one", right))
    other_folder = write_evaluation(tmp_path / "two", right)
    run = json.loads((other_folder / "run.json").read_text())
    write_json(other_folder / "run.json", run | {"limit": 5})
    with pytest.raises(UsageError, match="limit is 0 and 5"):
        build_table([one, collect(other_folder)])


def test_all_renderings_are_written_and_a_table_is_reproducible(tmp_path):
    right = {"base": {"math500": verdicts(4)}, "a": {"math500": verdicts(9)}, "b": {"math500": verdicts(7)}}
    folder = write_evaluation(tmp_path / "a", right)
    paths = write_table(build_table([collect(folder)]), tmp_path / "first")
    again = write_table(build_table([collect(folder)]), tmp_path / "second")
    assert [path.name for path in paths] == ["table.md", "table.csv", "table.json", "table.png"]
    for path, other in zip(paths[:3], again[:3], strict=True):
        assert path.read_bytes() == other.read_bytes()
    assert BENCHMARKS["math500"].title in paths[0].read_text()


def test_a_torn_last_line_is_dropped_and_overwritten(tmp_path):
    store = Store(tmp_path)
    with store.completion_appender("s") as appender:
        appender.append(asdict(Completion("one", "é", "stop", 1, 1)))
    path = tmp_path / "completions" / "s.jsonl"
    path.write_bytes(path.read_bytes() + b'{"key": "two", "te')
    assert set(store.read_completions()) == {"one"}
    with store.completion_appender("s") as appender:
        appender.append(asdict(Completion("three", "x", "stop", 1, 1)))
    assert set(store.read_completions()) == {"one", "three"}
    path.write_bytes(b"damaged\n" + path.read_bytes())
    with pytest.raises(UsageError, match="line 1: damaged"):
        store.read_completions()
