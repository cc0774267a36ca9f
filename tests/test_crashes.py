"""SIGKILL at random moments: the run directory in the end is the one of a run that was never killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from verl_populora.rundir import RunReader

pytestmark = pytest.mark.slow
KILLS, STEPS = 32, 68


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """What the harness printed, the killed run and the undisturbed one."""
    folder = tmp_path_factory.mktemp("crashes")
    command = [sys.executable, "-m", "tests.crash_harness", folder, "--steps", STEPS, "--kills", KILLS]
    done = subprocess.run(
        [*map(str, command)],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    return json.loads(done.stdout.splitlines()[-1]), folder / "killed", folder / "straight"


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_kills_hit_checkpoints_and_evolutions(crashed):
    report, *_ = crashed
    assert report["kills"] == KILLS
    assert report["by_phase"].get("evolution", 0) >= 4 and report["by_phase"].get("checkpoint", 0) >= 4, report


def test_every_step_is_recorded_once(crashed):
    _, killed, straight = crashed
    reader = RunReader(killed)
    assert [row["step"] for row in reader.metrics()] == list(range(1, STEPS + 1))
    assert reader.task_steps() == list(range(1, STEPS + 1))
    assert reader.matches() == RunReader(straight).matches()
    assert reader.lineage() == RunReader(straight).lineage()
    assert reader.evolution() == RunReader(straight).evolution()
    for step in reader.task_steps():
        assert reader.tasks(step) == RunReader(straight).tasks(step)


def test_state_and_weights_are_those_of_the_undisturbed_run(crashed):
    _, killed, straight = crashed
    for name in files(straight):
        if name.endswith(".safetensors"):  # the order of a header's entries is not fixed
            one, other = load_file(killed / name), load_file(straight / name)
            assert one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one), name
        elif name.startswith(("checkpoints/", "hall_of_fame/")):
            assert (killed / name).read_bytes() == (straight / name).read_bytes(), name


def test_nothing_half_written_is_left(crashed):
    _, killed, straight = crashed
    assert files(killed) == files(straight)
    assert sorted(p.name for p in (killed / "checkpoints").iterdir()) == [f"step_{STEPS - 1}", f"step_{STEPS}"]
