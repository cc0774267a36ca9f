"""The report says what the run directory says, for one run or several, finished or not, escaped."""

import json
import re
import shutil
import struct
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.selfplay_simulator import simulate
from verl_populora.report.__main__ import load_report, main, write_report
from verl_populora.report.cost_table import duration, member_costs, run_facts
from verl_populora.report.data import load_run, seat_order, unique_names
from verl_populora.report.page import render_page
from verl_populora.report.samples import choose_samples, code_html
from verl_populora.report.spec import (
    LineFigure,
    MatrixFigure,
    Panel,
    Series,
    Style,
    TreeFigure,
    running_mean,
    value_range,
)
from verl_populora.report.svg import number, ticks
from verl_populora.report.verdict import Status, judge
from verl_populora.rundir import RunReader, RunWriter


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    simulate(folder / "single", teachers=0, students=0, collapse=True)
    simulate(folder / "2t2s")
    simulate(folder / "short", steps=3)
    return folder


class Elements(HTMLParser):
    """Start tags by name with their attributes, and the text of script elements by id."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self._script = [], {}, None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._script = dict(attrs).get("id") if tag == "script" else None

    def handle_endtag(self, tag):
        self._script = None

    def handle_data(self, data):
        if self._script:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data


def figures_by_id(paths) -> dict[str, Any]:
    return {figure.id: figure for figure in load_report(paths).figures}


def test_every_measured_line_equals_metrics_jsonl(runs):
    report = load_report([runs / "single", runs / "2t2s"])
    rows = {name: RunReader(runs / name).metrics() for name in ("single", "2t2s")}
    compared = set()
    for figure in report.figures:
        if isinstance(figure, LineFigure) and not figure.id.startswith("overview"):
            for panel in figure.panels:
                for series in panel.series:
                    if series.metric:
                        assert list(series.values) == [row.get(series.metric) for row in rows[panel.run]]
                        assert list(panel.steps) == [row["step"] for row in rows[panel.run]]
                        compared.add(series.metric)
    assert {"tasks/valid_rate", "tasks/unsolved_rate", "tasks/mixed_rate", "tasks/solved_rate"} <= compared
    assert {
        "student/student2/solve_rate",
        "role/teacher/reward",
        "invalid/syntax",
        "complexity/lines",
    } <= compared
    assert {"coverage/new", "coverage/distinct_rate", "member/teacher1/mu", "time/rollout"} <= compared


def test_the_overview_holds_one_line_a_run_with_gaps_where_a_run_is_shorter(runs):
    figures = figures_by_id([runs / "2t2s", runs / "short"])
    for figure, metric in (("overview_solve_rate", "tasks/solve_rate"), ("overview_coverage", "coverage/total")):
        long, short = figures[figure].panels[0].series
        assert list(long.values) == [row[metric] for row in RunReader(runs / "2t2s").metrics()]
        assert list(short.values[:3]) == [row[metric] for row in RunReader(runs / "short").metrics()]
        assert set(short.values[3:]) == {None}
    index = figures["overview_complexity"].panels[0].series[0].values
    assert sum(index[:10]) / 10 == pytest.approx(1)


def test_the_page_embeds_exactly_what_it_draws(runs, tmp_path):
    page = write_report([runs / "2t2s"], tmp_path, png=False).read_text()
    elements = Elements(page)
    data = json.loads(elements.scripts["report-data"])
    report = load_report([runs / "2t2s"])
    assert set(data["figures"]) == {figure.id for figure in report.figures}
    for figure in report.figures:
        embedded = data["figures"][figure.id]
        assert embedded["title"] == figure.title and len(embedded["panels"]) == len(figure.panels)
    solve = data["figures"]["solve_rate"]["panels"][0]
    metrics = RunReader(runs / "2t2s").metrics()
    assert solve["series"][0]["values"] == [row["student/student1/solve_rate"] for row in metrics]
    drawings = [attrs for tag, attrs in elements.tags if tag == "svg"]
    assert {attrs["id"] for attrs in drawings} == {f"{name}-0" for name in data["figures"]}
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] for attrs in drawings)


def test_the_page_refers_to_nothing_outside_itself(runs, tmp_path):
    page = write_report([runs / "2t2s", runs / "single"], tmp_path, png=False).read_text()
    for tag, attrs in Elements(page).tags:
        assert tag not in {"img", "iframe", "object", "embed"}
        assert attrs.get("src") is None
        assert not attrs.get("href") or attrs["href"].startswith(("#", "data:,"))
    assert "@import" not in page and not re.search(r"url\(", page)


def test_text_from_a_run_cannot_become_markup(tmp_path):
    path = simulate(tmp_path / "<b>run", steps=2)
    (path / "tasks" / "step_000002.jsonl").unlink()
    hostile = "</script><script>alert(1)</script><img src=x>"
    task = {
        "step": 2,
        "kind": hostile,
        "teacher": hostile,
        "student": hostile,
        "valid": True,
        "solve_rate": 0.0,
    }
    task |= {"program": f"def f(x):\n    return '{hostile}'", "inputs": [hostile], "outputs": [hostile]}
    attempt = {"outcome": "wrong", "answer": hostile}
    RunWriter(path).tasks(2, [task | {"message": hostile, "attempts": [attempt]}])
    page = render_page(load_report([path]))
    tags = Elements(page).tags
    assert [tag for tag, _ in tags].count("script") == 2
    assert "img" not in [tag for tag, _ in tags]
    assert "<b>run" not in page


def test_all_panels_of_a_figure_share_their_axes(runs):
    for figure in figures_by_id([runs / "single", runs / "2t2s"]).values():
        if isinstance(figure, LineFigure) and figure.id.startswith("complexity_"):
            low, high = value_range(figure)
            for panel in figure.panels:
                assert all(value is None or low <= value <= high for value in panel.series[0].values)
    page = render_page(load_report([runs / "single", runs / "2t2s"]))
    ranges = re.findall(r'<svg id="complexity_lines-\d"[^>]*data-first="([\d.]+)" data-last="([\d.]+)"', page)
    assert len(ranges) == 2 and len(set(ranges)) == 1


def test_matches_lineage_and_diversity_equal_their_files(runs):
    reader, figures = RunReader(runs / "2t2s"), figures_by_id([runs / "2t2s"])
    race, matrix, tree = figures["arms_race"], figures["match_matrix"], figures["lineage"]
    matches = reader.matches()
    assert isinstance(race, LineFigure) and isinstance(figures["diversity"], LineFigure)
    assert [(o.step, o.result) for o in race.panels[0].outcomes] == [(m["step"], m["result"]) for m in matches]
    assert isinstance(matrix, MatrixFigure) and isinstance(tree, TreeFigure)
    table = matrix.panels[0]
    assert table.rows == ("teacher1", "teacher2") and table.columns == ("student1", "student2")
    met = [m for m in matches if m["teacher"].startswith("teacher2") and m["student"].startswith("student1")]
    assert table.values[1][0] == pytest.approx(sum(m["solve_rate"] for m in met) / len(met))
    assert table.notes[1][0] == f"×{len(met)}"
    lives = {life.name: life for life in tree.panels[0].lives}
    births = reader.lineage()
    assert set(lives) == {record["name"] for record in births}
    for record in births:
        assert lives[record["name"]].born == record["birth_step"]
        assert list(lives[record["name"]].parents) == record["lineage"]["parents"]
    evolutions = reader.evolution()
    diversity = figures["diversity"].panels[0]
    assert diversity.steps == tuple(record["step"] for record in evolutions) == race.panels[0].events
    pairs = {(pair["first"], pair["second"]): pair["distance"] for pair in evolutions[0]["diversity"]["pairs"]}
    assert diversity.series[0].values[0] == pytest.approx(pairs["teacher1", "teacher2"])
    distances = figures["distances"].panels[0]
    last = {(pair["first"], pair["second"]): pair["distance"] for pair in evolutions[-1]["diversity"]["pairs"]}
    assert distances.rows == ("teacher1", "teacher2", "student1", "student2")
    assert distances.values[1][3] == distances.values[3][1] == last["teacher2", "student2"]
    assert distances.values[0][2] is None is last["teacher1", "student1"]


def test_the_verdict_tells_growth_from_collapse(runs):
    assert judge(load_run(runs / "single")).status is Status.COLLAPSES
    assert [finding.name for finding in judge(load_run(runs / "single")).findings] == ["self_calibration"]
    assert judge(load_run(runs / "2t2s")).status is Status.GROWS
    assert judge(load_run(runs / "short")).status is Status.TOO_EARLY


def test_a_flat_run_has_no_trend_and_a_shrinking_one_simplifies(tmp_path):
    def write(path, slope):
        writer = RunWriter(path)
        for step in range(1, 31):
            lines = 6 + slope * step + (0.5 if step % 2 else -0.5)
            writer.metrics(step, {"complexity/lines": lines, "tasks/solve_rate": 0.5, "coverage/new": 3})
        return load_run(path)

    assert judge(write(tmp_path / "flat", 0)).status is Status.NO_TREND
    assert judge(write(tmp_path / "shrinking", -0.1)).status is Status.SIMPLIFIES
    assert judge(write(tmp_path / "growing", 0.1)).status is Status.GROWS


def test_a_run_in_progress_is_shown_as_far_as_it_is(tmp_path, runs):
    empty = tmp_path / "started"
    RunWriter(empty).run_info({"seed": 1})
    write_report([empty], tmp_path / "a", png=False)
    RunWriter(empty).metrics(1, {"tasks/solve_rate": 0.5})
    with open(empty / "metrics.jsonl", "a") as file:
        file.write('{"step": 2, "tasks/so')
    page = write_report([empty, runs / "2t2s"], tmp_path / "b", png=False).read_text()
    assert "1 of at least 20 steps" in page and "in progress" in page


def test_a_step_without_metrics_is_not_shown_yet(runs):
    whole, path = load_run(runs / "2t2s"), runs / "2t2s-cut"
    shutil.copytree(runs / "2t2s", path)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:19]))
    cut = load_run(path)
    assert cut.matches == tuple(match for match in whole.matches if match["step"] <= 19)
    assert [record["step"] for record in cut.evolutions] == [10]
    assert len(cut.lineage) == 6 and {record["step"] for record in cut.proposals} == set(range(10, 20))


def test_samples_are_the_hardest_the_most_learnable_and_the_easiest():
    def task(name, solve_rate, cyclomatic, valid=True):
        return {
            "step": 1,
            "name": name,
            "teacher": None if name == "from the buffer" else "teacher1",
            "valid": valid,
            "solve_rate": solve_rate,
            "complexity": {"cyclomatic": cyclomatic},
        }

    proposals = [
        task("unsolved simple", 0.0, 1),
        task("unsolved hard", 0.0, 9),
        task("half", 0.5, 2),
        task("quarter", 0.25, 9),
        task("easy hard", 1.0, 8),
        task("easy simple", 1.0, 1),
        task("invalid", None, 9, valid=False),
        task("from the buffer", 0.0, 99),
    ]
    chosen = {group.title: [task["name"] for task in group.tasks] for group in choose_samples(proposals, count=1)}
    assert chosen == {
        "Hardest unsolved": ["unsolved hard"],
        "Most learnable": ["half"],
        "Easiest": ["easy simple"],
    }
    assert [group.tasks for group in choose_samples([])] == [(), (), ()]


def test_long_programs_are_cut_with_a_note():
    shown = code_html("\n".join(f"x{index} = 1" for index in range(100)))
    assert shown.count("\n") == 40 and "60 more lines" in shown


def test_a_part_of_a_stack_has_the_same_colour_in_every_run(tmp_path):
    counts = {
        "a": {"invalid/syntax": 9, "invalid/timeout": 1},
        "b": {"invalid/timeout": 5, "invalid/crash": 1},
    }
    for name, invalid in counts.items():
        RunWriter(tmp_path / name).metrics(1, invalid)
    panels = figures_by_id([tmp_path / "a", tmp_path / "b"])["invalid"].panels
    colours = [{series.label: series.colour for series in panel.series} for panel in panels]
    assert colours == [{"syntax": "part-1", "timeout": "part-2"}, {"timeout": "part-2", "crash": "part-3"}]


def test_small_parts_of_a_stack_are_summed_up(tmp_path):
    RunWriter(tmp_path).metrics(1, {f"invalid/reason{index}": 20 - index for index in range(10)})
    series = figures_by_id([tmp_path])["invalid"].panels[0].series
    assert [one.label for one in series][-2:] == ["reason6", "3 other"]
    assert series[-1].values == (13 + 12 + 11,)


def test_compute_by_member_adds_up(runs):
    run = load_run(runs / "2t2s")
    costs = list(member_costs(run))
    assert [cost.seat for cost in costs] == ["teacher1", "teacher2", "student1", "student2"]
    assert sum(cost.share for cost in costs) == pytest.approx(1)
    metrics = RunReader(runs / "2t2s").metrics()
    assert costs[2].tokens == sum(row["member/student1/tokens"] for row in metrics)
    assert costs[2].updates == len(metrics)


def test_the_facts_come_from_metrics_and_run_json(runs, tmp_path):
    facts = dict(run_facts(load_run(runs / "2t2s")))
    metrics = RunReader(runs / "2t2s").metrics()
    assert facts["valid tasks"] == f"{sum(row['tasks/valid'] for row in metrics):,}"
    assert facts["births"] == "8" and facts["steps"] == "40" and facts["state"] == "in progress"
    assert facts["compute budget"] == "per_adapter" and facts["versions"] == "simulator 1"
    assert facts["sandbox isolation"] == "none" and "ended" not in facts
    writer = RunWriter(tmp_path)
    writer.run_info({"exit_reason": "finished"})
    writer.metrics(1, {"warn/copies": 1, "warn/checkpoint_skipped": 0, "drops/attempt": 3})
    facts = dict(run_facts(load_run(tmp_path)))
    assert facts == {"steps": "1", "state": "finished", "rows lost": "3", "warning copies": "at 1 steps"}


def test_png_files_are_written_for_every_figure_with_data(runs, tmp_path):
    write_report([runs / "2t2s"], tmp_path)
    expected = {f"{figure.id}.png" for figure in load_report([runs / "2t2s"]).figures}
    files = {file.name: file.read_bytes() for file in tmp_path.glob("*.png")}
    assert set(files) == expected
    for content in files.values():
        width, height = struct.unpack(">II", content[16:24])
        assert content.startswith(b"\x89PNG") and width > 500 and height > 300


def test_the_command_prints_the_page_and_refuses_what_is_no_run(runs, tmp_path, capsys):
    assert main([str(runs / "short"), "--no-png"]) == 0
    assert capsys.readouterr().out.strip() == str(runs / "short" / "report" / "report.html")
    assert main([str(tmp_path / "nothing")]) == 2
    assert "not a directory" in capsys.readouterr().err
    assert main([str(runs / "short"), str(runs / "short"), "-o", str(tmp_path)]) == 2
    assert "given twice" in capsys.readouterr().err
    assert main([str(runs / "short"), "--window", "0"]) == 2


def test_runs_are_named_by_what_tells_them_apart(tmp_path):
    same = [tmp_path / "4t4s" / "seed1", tmp_path / "1t1s" / "seed1"]
    assert list(unique_names(same).values()) == ["4t4s/seed1", "1t1s/seed1"]
    assert list(unique_names([tmp_path / "a", tmp_path / "b"]).values()) == ["a", "b"]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 1, [0, 0.5, 1]),
        (0.9, 1.6, [1, 1.2, 1.4, 1.6]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (0, 12345, [0, 5000, 10000]),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert ticks(low, high, 4) == expected


def test_numbers_are_short():
    assert [number(value) for value in (0.0714, 17, 123.4, 12345, 2e7, 0)] == [
        "0.0714",
        "17",
        "123",
        "12k",
        "20M",
        "0",
    ]
    assert [duration(value) for value in (12.34, 250, 3900)] == ["12.3 s", "4 min 10 s", "1 h 05 min"]


def test_a_stack_reaches_as_high_as_its_sum_and_a_mean_skips_what_is_missing():
    panel = Panel("run", (1, 2), (Series("a", "part-1", (1.0, 2.0)), Series("b", "part-2", (3.0, None))))
    assert value_range(LineFigure("x", "", "", "", (panel,), Style.STACK)) == (0.0, 4.0)
    assert value_range(LineFigure("x", "", "", "", (panel,))) == (1.0, 3.0)
    assert running_mean((1.0, None, 3.0, 5.0), 3) == (1.0, 2.0, 4.0, 4.0)
    assert running_mean((None, 1.0, None, None, None, 3.0, None), 3) == (None, 1.0, 1.0, None, 3.0, 3.0, None)


def test_seats_are_in_natural_order_with_teachers_first():
    seats = ["student2", "teacher10", "student10", "teacher9"]
    assert sorted(seats, key=seat_order) == ["teacher9", "teacher10", "student2", "student10"]
