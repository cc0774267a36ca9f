"""What is written to a run directory is read back, also after a crash, a resume or while it grows."""

import json
import math

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from verl_populora.members import Lineage, Member, Role
from verl_populora.rundir import RunDirError, RunReader, RunWriter, member_record


def write_steps(writer, steps):
    for step in steps:
        writer.metrics(step, {"tasks/valid": step, "time/step": 0.5})
        writer.matches([{"step": step, "teacher": "teacher1", "student": "student1"}])
        writer.tasks(step, [{"step": step, "index": 0, "valid": True, "program": 'def f(x):\n    return "\u00e9"'}])
        writer.evolution({"step": step, "diversity": np.eye(2)})
        writer.birth(member_record(Member("teacher1", Role.TEACHER, 1, generation=step, birth_step=step)))


def test_records_come_back_as_written(tmp_path):
    writer = RunWriter(tmp_path / "run")
    writer.config({"population": {"teachers": 2}, "name": "${population.teachers} teachers"})
    writer.run_info({"seed": 3, "path": tmp_path})
    write_steps(writer, [1, 2])
    reader = RunReader(tmp_path / "run")
    assert reader.config() == {"population": {"teachers": 2}, "name": "2 teachers"}
    assert reader.run_info() == {"seed": 3, "path": str(tmp_path)}
    assert reader.metrics() == [{"step": s, "tasks/valid": s, "time/step": 0.5} for s in (1, 2)]
    assert [match["step"] for match in reader.matches()] == [1, 2]
    assert reader.task_steps() == [1, 2]
    assert reader.tasks(2)[0]["program"] == 'def f(x):\n    return "\u00e9"'
    assert reader.tasks(3) == []
    assert reader.evolution()[0]["diversity"] == [[1.0, 0.0], [0.0, 1.0]]


def test_a_hydra_config_is_written_resolved(tmp_path):
    RunWriter(tmp_path).config(OmegaConf.create({"a": 1, "b": "${a}"}))
    assert (tmp_path / "config.yaml").read_text() == "a: 1\nb: 1\n"


def test_member_record_holds_the_whole_lineage():
    lineage = Lineage("dare", ("teacher1", "teacher2"), (3, 4), {"p": 0.7}, seed=9)
    record = member_record(Member("teacher3", Role.TEACHER, 3, generation=2, birth_step=10, lineage=lineage))
    assert record["name"] == "teacher3-g2" and record["role"] == "teacher" and record["birth_step"] == 10
    assert record["lineage"] == {
        "operator": "dare",
        "parents": ("teacher1", "teacher2"),
        "parent_versions": (3, 4),
        "params": {"p": 0.7},
        "seed": 9,
    }


def test_numbers_of_numpy_and_torch_become_json_numbers(tmp_path):
    writer = RunWriter(tmp_path)
    writer.metrics(1, {"a": np.float32(0.5), "b": np.int64(3), "c": torch.tensor(0.25), "d": math.nan, "e": np.inf})
    assert RunReader(tmp_path).metrics() == [{"step": 1, "a": 0.5, "b": 3, "c": 0.25, "d": None, "e": None}]


@pytest.mark.parametrize("value", ["0.5", True, [1.0], {"a": 1}])
def test_a_metric_that_is_no_number_is_refused_by_name(tmp_path, value):
    with pytest.raises(TypeError, match="'tasks/valid'"):
        RunWriter(tmp_path).metrics(1, {"tasks/valid": value})
    assert RunReader(write_marker(tmp_path)).metrics() == []


def write_marker(path):
    RunWriter(path).run_info({})
    return path


def test_a_line_cut_by_a_crash_is_ignored_and_then_removed(tmp_path):
    write_steps(RunWriter(tmp_path), [1, 2])
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 3, "tasks/va')
    assert [row["step"] for row in RunReader(tmp_path).metrics()] == [1, 2]
    RunWriter(tmp_path).metrics(3, {"tasks/valid": 3})
    assert [row["step"] for row in RunReader(tmp_path).metrics()] == [1, 2, 3]


def test_what_a_killed_process_was_replacing_is_removed(tmp_path):
    RunWriter(tmp_path).tasks(1, [])
    leftovers = [tmp_path / ".run.json.4711", tmp_path / "tasks" / ".step_000002.jsonl.4711"]
    others = [tmp_path / ".hidden", tmp_path / "tasks" / "step_000001.jsonl"]
    for path in (*leftovers, others[0]):
        path.write_text("{")
    RunWriter(tmp_path)
    assert not any(path.exists() for path in leftovers) and all(path.exists() for path in others)


def test_a_damaged_line_inside_a_file_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": \n{"step": 3}\n')
    with pytest.raises(RunDirError, match=r"metrics\.jsonl:2"):
        RunReader(tmp_path).metrics()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[2]\n')
    with pytest.raises(RunDirError, match=r"metrics\.jsonl:2: expected an object"):
        RunReader(tmp_path).metrics()


def test_truncation_leaves_what_a_run_stopped_at_that_step_would_have_written(tmp_path):
    resumed, stopped = RunWriter(tmp_path / "resumed"), RunWriter(tmp_path / "stopped")
    write_steps(resumed, [1, 2, 3, 4])
    write_steps(stopped, [1, 2])
    resumed.truncate_after(2)

    def content(path):
        return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}

    assert content(tmp_path / "resumed") == content(tmp_path / "stopped")
    assert len(content(tmp_path / "stopped")) == 6


def test_a_record_without_its_step_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"matches\.jsonl has no 'step'"):
        RunWriter(tmp_path).matches([{"teacher": "teacher1"}])
    assert not (tmp_path / "matches.jsonl").exists()


def test_a_run_that_has_just_started_reads_as_empty(tmp_path):
    reader = RunReader(write_marker(tmp_path))
    assert reader.metrics() == reader.matches() == reader.lineage() == reader.evolution() == []
    assert reader.task_steps() == [] and reader.config() == {}


def test_a_directory_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirError, match="not a directory"):
        RunReader(tmp_path / "missing")
    with pytest.raises(RunDirError, match="not a run directory"):
        RunReader(tmp_path)


def test_every_line_is_one_json_object(tmp_path):
    RunWriter(tmp_path).matches([{"step": 1, "text": "two\nlines\u2028and more"}])
    lines = (tmp_path / "matches.jsonl").read_bytes().split(b"\n")
    assert len(lines) == 2 and json.loads(lines[0])["text"] == "two\nlines\u2028and more"
