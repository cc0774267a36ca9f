"""Seed files in AZR's schema, and seed tasks."""

import asyncio
import json
import logging
import os
from pathlib import Path

import pytest

from azr_overrides.config import compose
from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.seeding import SeedFiles, SeedPool, identity_task, seed_target
from azr_overrides.seeds import read_seeds, seed_row, write_seeds
from azr_overrides.tasks.types import Candidate, Task, TaskKind
from azr_overrides.tasks.verification import Verifier

SHARED = Path(os.environ.get("AZR_SEEDS", Path(__file__).parents[2] / "shared/azr/seeds"))
GOOD = {
    "snippet": "def f(a):\n    return [a, a + 1]",
    "input": "3",
    "output": "[3, 4]",
    "imports": [],
    "original_snippet": "def f(a):\n    return [a, a + 1]",
    "composite_functions": [],
    "_input_type": "int",
    "_output_type": "list",
}
GOOD_F = {
    "snippet": "def f(a):\n    return a * 2",
    "inputs": ["1", "2", "'x'"],
    "outputs": ["2", "4", "'xx'"],
    "message": "twice",
    "imports": [],
    "_input_types": ["int", "int", "str"],
    "_output_types": ["int", "int", "str"],
}


def write(path, *rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def load(files):
    async def run():
        async with Sandbox(SandboxConfig(min_isolation="rlimits")) as sandbox:
            return await files.load(Verifier(sandbox))

    return asyncio.run(run())


def by_kind(tasks, kind):
    return [task for task in tasks if task.kind is kind]


def test_rows_become_candidates(tmp_path):
    path = write(tmp_path / "s.jsonl", GOOD, "\n", {**GOOD, "imports": ["import math"]})
    first, second = read_seeds(path, TaskKind.CODE_I)
    assert first == Candidate(TaskKind.CODE_I, GOOD["snippet"], ("3",))
    assert second.program == "import math\n" + GOOD["snippet"] and second.imports == ("import math",)
    assert len(read_seeds(path, TaskKind.CODE_I, limit=1)) == 1


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (json.dumps(GOOD)[:40], "not JSON"),
        ("[1]", "expected a JSON object"),
        ("{}", "no field 'snippet'"),
        (json.dumps({**GOOD, "input": 3}), "input is not a string"),
        (json.dumps({**GOOD, "imports": "import math"}), "imports is not a list of strings"),
        (json.dumps(GOOD_F), "no field 'input'; is this a seed file of another task kind"),
    ],
)
def test_a_damaged_row_is_named_by_file_and_line(tmp_path, line, fault):
    path = write(tmp_path / "s.jsonl", GOOD, line)
    with pytest.raises(ValueError, match=f"s.jsonl, line 2: {fault}"):
        read_seeds(path, TaskKind.CODE_O)


def test_a_damaged_induction_row_is_named(tmp_path):
    path = write(tmp_path / "f.jsonl", {**GOOD_F, "outputs": ["2"]})
    with pytest.raises(ValueError, match="line 1: 3 inputs but 1 outputs"):
        read_seeds(path, TaskKind.CODE_F)
    with pytest.raises(ValueError, match="no seed tasks"):
        read_seeds(write(tmp_path / "e.jsonl", "\n"), TaskKind.CODE_F)
    with pytest.raises(FileNotFoundError):
        read_seeds(tmp_path / "none.jsonl", TaskKind.CODE_F)


def test_without_files_every_kind_starts_from_a_task_that_verifies():
    tasks = load(SeedFiles())
    assert [task.kind for task in by_kind(tasks, TaskKind.CODE_F)] == [TaskKind.CODE_F]
    assert {task.kind for task in tasks} == set(TaskKind)

    async def verify():
        async with Sandbox(SandboxConfig(min_isolation="rlimits")) as sandbox:
            verifier = Verifier(sandbox)
            return [
                await verifier.validate(Candidate(t.kind, t.program, t.inputs, message=t.message), t.author, t.step)
                for t in tasks
            ]

    assert asyncio.run(verify()) == tasks


def test_seeds_are_executed_and_rows_that_are_no_tasks_left_out(tmp_path, caplog):
    # Libraries imported by other tests raise the root logger's level.
    caplog.set_level(logging.WARNING, logger="azr_overrides.seeding")
    wrong = {**GOOD, "snippet": "def f(a):\n    return object()", "output": ""}
    stale = {**GOOD, "input": "5", "output": "'something else'"}
    path = write(tmp_path / "s.jsonl", GOOD, wrong, stale)
    induction = write(tmp_path / "f.jsonl", GOOD_F)
    tasks = load(SeedFiles(code_io=path, code_f=induction))
    for kind in (TaskKind.CODE_O, TaskKind.CODE_I):
        assert [task.outputs for task in by_kind(tasks, kind)] == [("[3, 4]",), ("[5, 6]",)]
    assert [task.message for task in by_kind(tasks, TaskKind.CODE_F)] == ["twice"]
    assert by_kind(tasks, TaskKind.CODE_E) == [identity_task(TaskKind.CODE_E)]
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert "1 of 4 seed rows are no tasks: 1 bad_value" in caplog.text


def test_a_file_without_any_task_is_an_error(tmp_path):
    path = write(tmp_path / "s.jsonl", {**GOOD, "snippet": "def f(a):\n    return 1 / 0"})
    with pytest.raises(ValueError, match="none of its rows is a valid code_o task"):
        load(SeedFiles(code_io=path))


def test_written_seeds_are_read_back_with_every_field(tmp_path):
    task = Task(
        "id",
        TaskKind.CODE_O,
        "def g_0(x): ...\ndef f(x):\n    return g_0(x)",
        ("1, 'ä'",),
        ("None",),
        (),
        original_program="def f(x):\n    return g_0(x)",
        composites=("def g_0(x): ...",),
    )
    write_seeds(tmp_path / "new" / "s.jsonl", [task])
    (read,) = read_seeds(tmp_path / "new" / "s.jsonl", TaskKind.CODE_O)
    assert read == Candidate(
        task.kind,
        task.program,
        task.inputs,
        (),
        original_program=task.original_program,
        composites=task.composites,
    )
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["s.jsonl"]


@pytest.mark.parametrize(("row", "kind"), [(GOOD, TaskKind.CODE_O), (GOOD_F, TaskKind.CODE_F)])
def test_rows_are_written_in_the_schema_they_were_read_in(tmp_path, row, kind):
    (candidate,) = read_seeds(write(tmp_path / "s.jsonl", row), kind)
    outputs = tuple(row.get("outputs", [row.get("output")]))
    task = Task("id", kind, candidate.program, candidate.inputs, outputs, message=candidate.message)
    assert seed_row(task) == row


def test_as_many_rows_are_used_as_the_seeding_stage_would_make():
    config = compose(["data.train_batch_size=8", "azr.seed_dataset=a.jsonl"])
    assert seed_target(config) == 32
    assert SeedFiles.from_config(config) == SeedFiles(code_io="a.jsonl", limit=32)


def test_a_pool_compares_with_earlier_batches():
    one, two = (Task(name, TaskKind.CODE_O, name, ("1",), ("1",)) for name in "ab")
    pool = SeedPool([one])
    assert (pool.add([one, two, two]), pool.add([two]), len(pool)) == (2, 0, 3)


@pytest.mark.skipif(not SHARED.is_dir(), reason="AZR_SEEDS not available")
@pytest.mark.parametrize("path", sorted(SHARED.glob("*.jsonl")), ids=lambda path: path.stem)
def test_shipped_seed_files_load_and_are_written_back_in_their_schema(tmp_path, path):
    kind = TaskKind.CODE_F if "code_f" in path.name else TaskKind.CODE_O
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    files = SeedFiles(code_f=str(path), limit=24) if kind is TaskKind.CODE_F else SeedFiles(code_io=str(path), limit=24)
    tasks = by_kind(load(files), kind)
    assert len(tasks) >= 16
    write_seeds(tmp_path / path.name, tasks)
    for line in (tmp_path / path.name).read_text().splitlines():
        written = json.loads(line)
        assert set(written) == set(rows[1])
        assert any(written["snippet"] == row["snippet"] for row in rows)
        assert all(type(written[key]) is type(rows[1][key]) for key in written)
    assert len(read_seeds(tmp_path / path.name, kind)) == len(tasks)
