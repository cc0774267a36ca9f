"""The comparison of two runs, on run directories and an evaluation written by their own writers."""

import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from azr_overrides.compare import Spread, main, summarise
from eval.grade import grade_key, grader_name
from eval.store import SCHEMA, Appender, Store, write_json
from eval.types import Completion, Grade, Profile, Request, Sampling, Status
from verl_populora.report.data import seat_of
from verl_populora.rundir import RunDirError, RunWriter

ROOT = Path(__file__).parents[1]
SAMPLING = Sampling(0.0, 1.0, 100, (), 0)


def proposal(step, teacher, student, tokens=10, attempts=(100, 100)):
    return {
        "step": step,
        "teacher": teacher,
        "response_tokens": tokens if teacher else 0,
        "attempts": [{"student": student, "response_tokens": count} for count in attempts],
    }


def write_run(path, pairs, steps=4, seconds=2.0, solve_rate=0.5, skipped=0):
    """A run of ``steps`` steps in which each pair (teacher, student) makes one proposal and two attempts."""
    writer = RunWriter(path)
    teachers = len(pairs) if pairs[0][0] != pairs[0][1] else 0
    writer.config({"population": {"teachers": teachers, "budget": "per_adapter"}})
    for step in range(1, steps + 1):
        metrics = {"time/step": seconds, "tasks/valid": len(pairs), "tasks/valid_rate": 1.0, "coverage/total": 3 * step}
        metrics |= {"tasks/solve_rate": solve_rate * step / steps, "complexity/lines": 2.0 * step}
        for seat in sorted({seat_of(member) for pair in pairs for member in pair}):
            metrics |= {
                f"member/{seat}/tokens": 50,
                f"member/{seat}/samples": 5,
                f"member/{seat}/skipped_updates": skipped,
            }
        writer.metrics(step, metrics)
        writer.tasks(step, [proposal(step, *pair) for pair in pairs])
    return path


@pytest.fixture
def runs(tmp_path):
    base = write_run(tmp_path / "base", [("agent1", "agent1")])
    population = write_run(
        tmp_path / "pop", [("teacher1", "student1-g2"), ("teacher2", "student1")], seconds=3.0, solve_rate=0.25
    )
    return base, population


def row(text, label):
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {label}")]
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_generated_tokens_are_counted_for_each_seat(runs):
    base, population = (summarise(path, 2) for path in runs)
    assert base.generated == Spread((840.0,))
    assert population.seats == ("teacher1", "teacher2", "student1")
    assert population.generated == Spread((40.0, 40.0, 1600.0))


def test_buffer_tasks_count_for_their_solver_only(tmp_path):
    writer = RunWriter(tmp_path)
    writer.metrics(1, {"member/agent1/tokens": 5})
    writer.tasks(1, [proposal(1, None, "agent1", attempts=(7,))])
    assert summarise(tmp_path, 1).generated == Spread((7.0,))


def test_the_table_shows_compute_course_and_ratio(runs, capsys):
    assert main([str(path) for path in runs] + ["--window", "1"]) == 0
    text = capsys.readouterr().out
    assert row(text, "adapters") == ["1", "3", "3.00"]
    assert row(text, "budget") == ["–", "per_adapter", ""]
    assert row(text, "tokens generated") == ["840", "560 (40 to 1,600)", "0.67"]
    assert row(text, "tokens trained") == ["200", "200 (200 to 200)", "1.00"]
    assert row(text, "updates") == ["4", "4 (4 to 4)", "1.00"]
    assert row(text, "wall-clock a step") == ["2.0 s", "3.0 s", "1.50"]
    assert row(text, "solve rate") == ["12.5% → 50.0%", "6.2% → 25.0%", "0.50"]
    assert row(text, "lines") == ["2.00 → 8.00", "2.00 → 8.00", "1.00"]
    assert row(text, "AST depth") == ["– → –", "– → –", "–"]
    assert row(text, "structures for 1,000") == ["3,000", "1,500", "0.50"]
    assert "No evaluation found" in text


def test_runs_without_steps_and_other_folders_are_refused(runs, tmp_path, capsys):
    empty = tmp_path / "empty"
    RunWriter(empty).run_info({})
    with pytest.raises(RunDirError, match="no step"):
        summarise(empty, 1)
    assert main([str(runs[0]), str(tmp_path / "nothing")]) == 2
    assert "is not a directory" in capsys.readouterr().err
    assert main([str(path) for path in runs] + ["--eval", str(tmp_path)]) == 2
    assert "holds no evaluation" in capsys.readouterr().err


def write_evaluation(folder, right):
    """An evaluation of four AIME problems; ``right`` maps each member to the number it solves."""
    members = [
        {"name": name, "group": "baseline" if name == "agent1" else "population", "role": "student", "kind": "azr",
         "adapter_sha256": name, "rating": None}
        for name in right
    ]  # fmt: skip
    run = {"schema": SCHEMA, "profile": "fixed", "limit": 4, "pinned_data": True, "members": members}
    run |= {
        "sampling": {"temperature": 0, "samples": 1, "max_tokens_cap": 0},
        "benchmarks": {"aime24": {"sha256": "x"}},
    }
    write_json(folder / "run.json", run)
    store = Store(folder)
    requests = [
        Request(f"{name}{n}", name, "aime24", str(n), 0, "azr", "?", True, SAMPLING) for name in right for n in range(4)
    ]
    store.write_plan(requests)
    with (
        store.completion_appender("all") as completions,
        Appender(store.grades_path(grader_name("aime24", Profile.FIXED))) as grades,
    ):
        for entry in store.read_plan():
            completions.append(asdict(Completion(entry.key, "42", "stop", 1, 1)))
            status = Status.CORRECT if int(entry.problem_id) < right[entry.member] else Status.WRONG
            grades.append(asdict(Grade(grade_key(entry), status, "42")))


def test_benchmarks_are_shown_with_intervals_where_they_exist(runs, capsys):
    write_evaluation(runs[1] / "eval", {"agent1": 1, "student1": 3})
    assert main([str(path) for path in runs]) == 0
    text = capsys.readouterr().out
    assert "AIME 24" in text and "95% intervals" in text
    assert "25.0" in text and "75.0" in text


def test_the_recipe_compares_and_refuses_what_it_cannot_do(runs):
    def recipe(*arguments):
        command = ["bash", str(ROOT / "recipes/compare.sh"), *map(str, arguments)]
        return subprocess.run(command, text=True, capture_output=True)

    compared = recipe(*runs, "--window", "1")
    assert compared.returncode == 0 and row(compared.stdout, "adapters") == ["1", "3", "3.00"]
    assert recipe().returncode == 2
    assert "needs a directory" in recipe("--train", "population=4t4s").stderr
    assert "can't be single" in recipe("--train", "out", "population=single").stderr
    assert "leave run_dir out" in recipe("--train", "out", "run_dir=here").stderr
    assert "--train OUT" in recipe("--help").stdout
