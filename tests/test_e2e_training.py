"""True end-to-end runs: Ray, verl's trainer, vLLM and the sandbox on the tiny base, in a process of their own."""

import pytest

from tests.e2e_support import adapter, differs, members, train
from verl_populora.evolution.lineage import make_child
from verl_populora.members import Lineage
from verl_populora.rundir import RunReader

pytestmark = [pytest.mark.slow, pytest.mark.e2e]


def all_records(run_dir):
    reader = RunReader(run_dir)
    return [record for step in reader.task_steps() for record in reader.tasks(step)]


def test_every_step_is_recorded(population_run):
    reader = RunReader(population_run)
    assert [row["step"] for row in reader.metrics()] == [1, 2, 3, 4]
    assert reader.task_steps() == [1, 2, 3, 4]
    assert len(reader.matches()) == 4 * 2
    info = reader.run_info()
    assert info["exit_reason"] == "finished"
    assert info["sandbox"]["level"] in ("seccomp", "full")


def test_every_members_weights_changed(population_run):
    replaced = {birth["seat"] for evolution in RunReader(population_run).evolution() for birth in evolution["births"]}
    for member in members(population_run, 1):
        if member["seat"] in replaced:
            continue
        first, last = (adapter(population_run, step, member["name"]) for step in (1, 4))
        assert differs(first, last), member["name"]
    for member in members(population_run, 4):
        assert max(float(f.b.abs().max()) for f in adapter(population_run, 4, member["name"]).modules.values()) > 0


def test_the_rollout_used_the_weights_of_the_previous_update(population_run):
    """Text of step s was written by the version that the checkpoint of step s - 1 holds."""
    for step in (2, 3, 4):
        versions = {m["name"]: m["version"] for m in members(population_run, step - 1)}
        for record in RunReader(population_run).tasks(step):
            assert record["teacher_version"] == versions[record["teacher"]]
            assert all(a["version"] == versions[a["student"]] for a in record["attempts"])


def test_rollout_and_trainer_agree_about_every_members_samples(population_run):
    gaps = [
        value
        for row in RunReader(population_run).metrics()
        for name, value in row.items()
        if name.startswith("member/") and name.endswith("/logprob_gap")
    ]
    assert len(gaps) == 4 * 4
    assert max(gaps) < 1e-3


def test_rewards_follow_from_the_recorded_verdicts(population_run):
    records = all_records(population_run)
    assert any(r["valid"] for r in records)
    for record in records:
        for attempt in record["attempts"]:
            expected = {"malformed": -1.0, "wrong": -0.5, "correct": 1.0}[attempt["outcome"]]
            assert attempt["reward"] == expected
        if not record["valid"]:
            assert record["reward"] == -1.0
            continue
        accuracies = [float(a["accuracy"] >= 1.0) for a in record["attempts"]]
        rate = sum(accuracies) / len(accuracies)
        assert record["solve_rate"] == pytest.approx(rate)
        if record["format_ok"]:
            assert record["reward"] == pytest.approx(1 - rate if rate > 0 else 0.0)


def test_all_three_kinds_were_proposed(population_run):
    assert {record["kind"] for record in all_records(population_run)} == {"code_o", "code_i", "code_f"}


def test_children_are_recorded_and_can_be_recomputed_bit_for_bit(population_run):
    reader = RunReader(population_run)
    births = [(e["step"], b) for e in reader.evolution() for b in e["births"]]
    assert births, "four steps with evolution every two steps must replace somebody"
    for step, birth in births:
        lineage = Lineage(
            birth["operator"], tuple(birth["parents"]), tuple(birth["parent_versions"]), birth["params"], birth["seed"]
        )
        child = make_child(lineage, lambda name, _version, step=step: adapter(population_run, step, name))
        name = next(m["name"] for m in members(population_run, step) if m["seat"] == birth["seat"])
        saved = adapter(population_run, step, name)
        assert not differs(child, saved)
        assert name in {record["name"] for record in reader.lineage()}


def test_the_single_agent_trains(tmp_path):
    # Several samples of each role and kind: TRR++ has no advantage for one alone.
    train(tmp_path / "run", "population=single", "data.train_batch_size=4", "trainer.total_training_steps=2")
    reader = RunReader(tmp_path / "run")
    rows = reader.metrics()
    assert [row["step"] for row in rows] == [1, 2]
    records = reader.tasks(2)
    assert {r["teacher"] for r in records} == {"agent1", None}  # proposals, and tasks from the buffers
    assert rows[1]["member/agent1/logprob_gap"] < 1e-3
    first, second = (adapter(tmp_path / "run", step, "agent1") for step in (1, 2))
    assert differs(first, second)
