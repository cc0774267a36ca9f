"""A real run in which teachers meet a past student: Ray, verl, vLLM and the sandbox on the tiny base."""

import pytest

from tests.e2e_support import adapter, checkpoint, differs, members, train
from verl_populora.adapters.peft_io import read_peft
from verl_populora.rundir import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

GUESTS = ["population=2t2s", "population.evolution.interval=1", "population.evolution.hall_of_fame=2"]


def test_a_past_student_is_met_never_trained_and_survives_a_resumption(tmp_path):
    run_dir = tmp_path / "run"
    overrides = [*GUESTS, "population.evolution.hall_of_fame_matches=1.0"]
    train(run_dir, *overrides, "trainer.total_training_steps=2")
    train(run_dir, *overrides, "trainer.total_training_steps=3")
    reader = RunReader(run_dir)
    dead = {birth["replaced"] for evolution in reader.evolution() for birth in evolution["births"]}
    # Nobody has been replaced before the first step; afterwards every match is against somebody who has.
    assert {match["student"] for match in reader.matches() if match["step"] == 1} == {"student1", "student2"}
    for step in (2, 3):
        records = reader.tasks(step)
        met = {attempt["student"] for record in records for attempt in record["attempts"]}
        assert met and met <= dead
        assert not any(attempt["trained"] for record in records for attempt in record["attempts"])
        assert {match["student"] for match in reader.matches() if match["step"] == step} <= dead
        row = next(row for row in reader.metrics() if row["step"] == step)
        assert "member/teacher1/samples" in row
        assert not any(name.startswith("member/student") and name.endswith("/samples") for name in row)
    # The student that was met last was served with the weights that it had when it was replaced.
    saved = read_peft(checkpoint(run_dir, 2) / "guest").weights
    name = next(iter({match["student"] for match in reader.matches() if match["step"] == 3}))
    kept = next((run_dir / "hall_of_fame").glob(f"{name}-v*"), None)
    assert kept is None or not differs(read_peft(kept).weights, saved)
    versions = {a["version"] for record in reader.tasks(3) for a in record["attempts"]}
    assert len(versions) == 1
    # A student that met nobody did not change, unless evolution replaced it.
    for member in members(run_dir, 3):
        before = {m["name"] for m in members(run_dir, 2)}
        if member["role"] == "student" and member["name"] in before:
            assert not differs(adapter(run_dir, 2, member["name"]), adapter(run_dir, 3, member["name"]))
