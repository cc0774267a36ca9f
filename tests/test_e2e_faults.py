"""Real runs on the tiny base that are killed or lose a part: docs/faults.md says what has to follow.

One run is struck at every start and resumed by the same command; in the end it has to equal the run that nothing
happened to. Set POPULORA_KILLS to kill a run that many times, at random moments (about half a minute each).
"""

import contextlib
import os
import random
import subprocess
import time

import psutil
import pytest

from tests.e2e_support import POPULATION, Run, adapter, differs, lines, members, train
from verl_populora.rundir import RunReader
from verl_populora.trainer import checkpoints

# Five starts in one fixture, which a busy machine makes slow.
pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(1800)]
FAILED = 1


def kill_after(run, happened, delay=0.0):
    run.wait_until(happened)
    time.sleep(delay)
    run.kill()


def a_child_was_born(run_dir, step):
    return lambda: any(birth["birth_step"] == step for birth in lines(run_dir / "lineage.jsonl"))


def a_checkpoint_is_being_written(run_dir, step):
    return (run_dir / "checkpoints" / f".step_{step}.partial").is_dir


def a_step_was_recorded(run_dir, step):
    return lambda: any(row["step"] == step for row in lines(run_dir / "metrics.jsonl"))


def _name(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""  # it has ended


def newest(run_dir):
    found = checkpoints.latest(run_dir / "checkpoints")
    return found and checkpoints.step_of(found)


def assert_equal_runs(one, other, steps):
    first, second = RunReader(one), RunReader(other)
    for run_dir, reader in ((one, first), (other, second)):
        assert [row["step"] for row in reader.metrics()][:steps] == list(range(1, steps + 1))
        assert reader.task_steps()[:steps] == list(range(1, steps + 1))
        assert not list((run_dir / "checkpoints").glob(".*"))
    for step in range(1, steps + 1):
        assert first.tasks(step) == second.tasks(step), f"step {step}"
    for records in ("matches", "evolution"):
        assert [r for r in getattr(first, records)() if r["step"] <= steps] == [
            r for r in getattr(second, records)() if r["step"] <= steps
        ]
    assert first.lineage() == second.lineage()
    assert members(one, steps) == members(other, steps)
    for member in members(one, steps):
        assert not differs(adapter(one, steps, member["name"]), adapter(other, steps, member["name"]))


@pytest.fixture(scope="module")
def struck(population_run, tmp_path_factory):
    """A run that was killed in an evolution and in a checkpoint, lost its sandbox and then its rollout worker.

    Returns the run directory and what was seen of the run that lost the worker.
    """
    run_dir = tmp_path_factory.mktemp("struck") / "run"
    with Run(run_dir, *POPULATION) as run:
        kill_after(run, a_child_was_born(run_dir, 2))
    assert newest(run_dir) == 1
    with Run(run_dir, *POPULATION) as run:
        kill_after(run, a_checkpoint_is_being_written(run_dir, 2))
    assert newest(run_dir) == 1
    with Run(run_dir, *POPULATION, "trainer.save_freq=100") as run:
        run.wait_until(a_step_was_recorded(run_dir, 2))
        templates = run.tree("zygote.boot")
        assert templates
        for template in templates:
            template.kill()
        run.wait_until(a_step_was_recorded(run_dir, 3))
        time.sleep(0.5)  # its episodes are on their way
        (worker,) = run.tree("EpisodeWorker")
        worker.kill()
        seen = {"code": run.wait(), "output": run.output}
    seen |= {"newest": newest(run_dir), "exit_reason": RunReader(run_dir).run_info()["exit_reason"]}
    train(run_dir, *POPULATION, "trainer.total_training_steps=5")
    return run_dir, seen


def test_a_lost_rollout_worker_ends_the_run_with_a_checkpoint_of_the_last_step(struck):
    _, seen = struck
    assert seen["code"] == FAILED
    assert "a rollout worker (EpisodeWorker) has died" in seen["output"], seen["output"][-6000:]
    assert "The same command resumes it" in seen["output"]
    assert seen["exit_reason"].startswith("failed: ")
    assert seen["newest"] == 3  # although trainer.save_freq asked for none


def test_killed_sandbox_templates_are_replaced_and_their_work_is_done_again(struck):
    run_dir, _ = struck
    third = RunReader(run_dir).metrics()[2]
    assert third["sandbox/respawns"] >= 1
    assert not any(name.startswith("drops/") for name in third)


def test_a_struck_run_equals_one_that_nothing_happened_to(struck, population_run):
    run_dir, _ = struck
    assert_equal_runs(run_dir, population_run, steps=4)


def test_a_resumed_run_can_be_given_more_steps(struck):
    run_dir, _ = struck
    reader = RunReader(run_dir)
    assert [row["step"] for row in reader.metrics()] == reader.task_steps() == [1, 2, 3, 4, 5]
    assert reader.run_info()["exit_reason"] == "finished"
    versions = {m["name"]: m["version"] for m in members(run_dir, 4)}
    assert all(r["teacher_version"] == versions[r["teacher"]] for r in reader.tasks(5))


@contextlib.contextmanager
def full_disk(folder):
    """A file system at ``folder`` with room for nothing but a probe; where that may not be mounted, skip."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture(scope="module")
def degenerate(tmp_path_factory):
    """No proposal can be valid, the tracker can't be reached, the disk is full; then the rollout engine dies."""
    run_dir = tmp_path_factory.mktemp("degenerate") / "run"
    unreachable = {
        "WANDB_BASE_URL": "http://127.0.0.1:9",
        "WANDB_API_KEY": "0" * 40,
        "WANDB_INIT_TIMEOUT": "2",
        "WANDB_DIR": str(run_dir.parent),
    }
    overrides = (
        "population=1t1s",
        "data.max_response_length=4",
        "trainer.logger=[console,wandb]",
        "trainer.total_training_steps=1000",
    )
    with full_disk(run_dir / "checkpoints"), Run(run_dir, *overrides, env=unreachable) as run:
        run.wait_until(a_step_was_recorded(run_dir, 2))
        for process in run.tree("VLLM::"):
            process.kill()
        code, output = run.wait(), run.output
        left = list((run_dir / "checkpoints").iterdir())
    return RunReader(run_dir), code, output, left


def test_a_step_without_any_valid_task_is_trained_on_and_decides_nothing(degenerate):
    reader, *_ = degenerate
    first = reader.metrics()[0]
    assert first["tasks/valid_rate"] == 0.0
    assert first["member/teacher1/skipped_updates"] == 0.0 and first["member/teacher1/version"] == 1
    assert "member/student1/samples" not in first and first["member/student1/version"] == 0
    assert all(record["reward"] == -1.0 and not record["valid"] for record in reader.tasks(1))
    assert len(reader.matches()) >= 2


def test_an_unreachable_tracker_is_reported_once_and_left_out(degenerate):
    reader, *_ = degenerate
    assert [row.get("warn/tracker_failed") for row in reader.metrics()[:2]] == [1.0, None]


def test_a_full_disk_costs_the_checkpoint_and_not_the_run(degenerate):
    reader, _, _, left = degenerate
    assert [row.get("warn/checkpoint_skipped") for row in reader.metrics()[:2]] == [1.0, 1.0]
    assert left == []


def test_a_lost_rollout_engine_ends_the_run(degenerate):
    reader, code, output, _ = degenerate
    assert code == FAILED
    assert "the run failed: " in output and "The same command resumes it" in output
    assert reader.run_info()["exit_reason"].startswith("failed: ")


by_hand = pytest.mark.skipif(
    "POPULORA_KILLS" not in os.environ, reason="set POPULORA_KILLS to the number of kills, 10 or more"
)


@by_hand
def test_a_lost_training_worker_ends_the_run(tmp_path):
    run_dir = tmp_path / "run"
    with Run(run_dir, *POPULATION) as run:
        run.wait_until(a_step_was_recorded(run_dir, 1))
        (worker,) = run.tree("ray::WorkerDict")
        worker.kill()
        code, output = run.wait(), run.output
    assert code == FAILED
    assert "The same command resumes it" in output
    assert RunReader(run_dir).run_info()["exit_reason"].startswith("failed: ")
    assert newest(run_dir) == 1


@by_hand
@pytest.mark.timeout(3600)
def test_many_kills(tmp_path):
    """Kills in checkpoints, in evolutions and anywhere, once of the main process alone; the end equals a quiet run."""
    kills, rng = int(os.environ["POPULORA_KILLS"]), random.Random(0)
    steps = kills + 2
    overrides = ("population=2t2s", "population.evolution.interval=1", f"trainer.total_training_steps={steps}")
    run_dir, quiet = tmp_path / "killed", tmp_path / "quiet"
    targets = (a_checkpoint_is_being_written, a_child_was_born, a_step_was_recorded)
    for number in range(kills):
        step = (newest(run_dir) or 0) + 1 + (number > 0 and rng.random() < 0.5)
        target = targets[number % len(targets)]
        with Run(run_dir, *overrides) as run:
            run.wait_until(target(run_dir, step))
            time.sleep(rng.uniform(0, 0.2 if target is not a_step_was_recorded else 4.0))
            if number == 0:
                others = run.tree()[:-1]
                run.process.kill()
                _, alive = psutil.wait_procs(others, timeout=60)
                # Ray's own agents, which touch no run, take longer.
                assert not [process for process in alive if process.is_running() and "Agent" not in _name(process)], (
                    alive
                )
        print(f"kill {number + 1}: {target.__name__} at step {step}; newest checkpoint {newest(run_dir)}", flush=True)
    train(run_dir, *overrides)
    train(quiet, *overrides)
    assert_equal_runs(run_dir, quiet, steps)
