"""Jobs on a real SLURM cluster of two nodes on this machine: Ray comes up, is checked, ends; signals requeue.

Recipes are stand-ins of a few lines: what is tested is the job around them.
"""

import os
import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.slurm_cluster import SlurmCluster, why_not

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv/bin/python"
SMALL_RAY = "--num-cpus=1 --object-store-memory=80000000"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def submit(slurm, folder, recipe, *arguments, nodes=2, **environment):
    """The number of the job that runs the text ``recipe``; its output goes to ``folder``/job.log."""
    script = folder / "recipe.sh"
    script.write_text("#!/usr/bin/env bash\nset -euo pipefail\n" + recipe)
    command = ["bash", str(ROOT / "recipes/slurm/submit.sh"), str(script), "--nodes", str(nodes), "--gpus", "0"]
    settings = {"LOGS": str(folder / "logs"), "RAY_NODE_OPTIONS": SMALL_RAY} | environment
    text = slurm.run(*command, "--time", "00:20:00", f"--output={folder}/job.log", *arguments, **settings)
    return int(text.split()[-1])


def processes_of(job):
    """Command lines of what is left of a job's Ray cluster."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if f"/tmp/ray-{job}" in line:
            found.append(line)
    return found


def test_ray_comes_up_over_two_nodes_and_ends_cleanly(slurm, tmp_path):
    recipe = f"""
"{PYTHON}" - <<'CODE'
import ray
ray.init(log_to_driver=False)
print("joined", sorted(node["NodeName"] for node in ray.nodes() if node["Alive"]), flush=True)
CODE
echo "arguments $* nodes $NODES"
"""
    job = submit(slurm, tmp_path, recipe, "seed=5")
    state = slurm.wait(job, ("COMPLETED", "FAILED"), 90)
    log = (tmp_path / "job.log").read_text()
    assert state["JobState"] == "COMPLETED", log
    assert "Ray is up: n1,n2" in log
    assert "joined ['n1', 'n2']" in log and "arguments seed=5 nodes 2" in log
    for node in ("n1", "n2"):
        assert "Ray runtime started" in (tmp_path / f"logs/ray-{node}.log").read_text()
        assert (tmp_path / "logs" / node).is_dir()
    assert processes_of(job) == []
    assert not Path(f"/tmp/ray-{job}").exists()


def test_a_node_that_does_not_join_is_named(slurm, tmp_path):
    """On the second node `ray start` is something that never starts."""
    late = tmp_path / "python"
    late.write_text(
        f'#!/usr/bin/env bash\nif [[ "$*" == *--address=* ]]; then exec sleep 60; fi\nexec "{PYTHON}" "$@"\n'
    )
    late.chmod(0o755)
    job = submit(slurm, tmp_path, "echo never\n", PYTHON=str(late), CLUSTER_TIMEOUT="12")
    state = slurm.wait(job, ("COMPLETED", "FAILED"), 90)
    log = (tmp_path / "job.log").read_text()
    assert state["JobState"] == "FAILED", log
    assert "Ray was not complete after 12 s" in log and "node n2 has not joined" in log
    assert "n1 has not" not in log and "never" not in log.splitlines()
    assert processes_of(job) == []


def starts(state, number=1):
    """Whether the recipe has started so many times."""
    return lambda: state.exists() and state.read_text().count("start") >= number


def wait_until(happened, slurm, job):
    while not happened():
        assert slurm.job(job)["JobState"] in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"), slurm.logs()
        time.sleep(0.1)


def signal_when(happened, slurm, job):
    """Send the signal that SLURM sends before a time limit."""
    wait_until(happened, slurm, job)
    slurm.run("scancel", "--batch", "--signal=USR1", str(job))


RESUMABLE = """
echo "start $(date +%s)" >>"$STATE"
trap 'echo saved >>"$STATE"; exit 75' USR1
if [[ $(grep -c start "$STATE") == 1 ]]; then sleep 100 & wait; fi
echo finished >>"$STATE"
"""


def test_a_signal_requeues_and_the_same_command_resumes(slurm, tmp_path):
    """SLURM's signal is sent by hand; what follows is what follows before a time limit."""
    state = tmp_path / "state"
    job = submit(slurm, tmp_path, RESUMABLE, nodes=1, STATE=str(state))
    signal_when(starts(state), slurm, job)
    done = slurm.wait(job, ("COMPLETED", "FAILED"), 120)
    words = [line.split()[0] for line in state.read_text().splitlines()]
    assert words == ["start", "saved", "start", "finished"], (tmp_path / "job.log").read_text()
    assert done["JobState"] == "COMPLETED" and done["Restarts"] == "1"
    assert processes_of(job) == []


def test_starts_that_save_nothing_do_not_go_on_forever(slurm, tmp_path):
    state = tmp_path / "state"
    job = submit(slurm, tmp_path, 'echo start >>"$STATE"\nsleep 100\n', nodes=1, STATE=str(state))
    signal_when(starts(state), slurm, job)
    signal_when(starts(state, 2), slurm, job)
    done = slurm.wait(job, ("COMPLETED", "FAILED"), 120)
    log = (tmp_path / "job.log").read_text()
    assert done["JobState"] == "FAILED" and done["Restarts"] == "1", log
    assert log.count("requeueing job") == 1 and "2 starts in a row saved nothing at their signal" in log


def test_a_signal_while_ray_starts_requeues_too(slurm, tmp_path):
    """The first check of the cluster never ends; the second is the real one."""
    late = tmp_path / "python"
    late.write_text(
        f'#!/usr/bin/env bash\nif [[ "$*" == *wait_for_ray* && ! -e "{tmp_path}/waited" ]]; then\n'
        f'  touch "{tmp_path}/waited"; exec sleep 100\nfi\nexec "{PYTHON}" "$@"\n'
    )
    late.chmod(0o755)
    state = tmp_path / "state"
    job = submit(slurm, tmp_path, 'echo start >>"$STATE"\n', nodes=1, STATE=str(state), PYTHON=str(late))
    signal_when((tmp_path / "waited").exists, slurm, job)
    done = slurm.wait(job, ("COMPLETED", "FAILED"), 120)
    assert done["JobState"] == "COMPLETED" and done["Restarts"] == "1", (tmp_path / "job.log").read_text()
    assert state.read_text() == "start\n"
    assert processes_of(job) == []


def test_a_cancelled_job_stays_cancelled(slurm, tmp_path):
    state = tmp_path / "state"
    recipe = "trap 'exit 75' USR1 TERM\n" + 'echo start >>"$STATE"\nsleep 100 & wait\n'
    job = submit(slurm, tmp_path, recipe, nodes=1, STATE=str(state))
    wait_until(starts(state), slurm, job)
    slurm.run("scancel", str(job))
    slurm.wait(job, ("CANCELLED",), 60)
    deadline = time.monotonic() + 60
    while processes_of(job) and time.monotonic() < deadline:
        time.sleep(0.5)
    done = slurm.job(job)
    assert done["JobState"] == "CANCELLED" and done["Restarts"] == "0", (tmp_path / "job.log").read_text()
    assert "requeueing" not in (tmp_path / "job.log").read_text()
    assert state.read_text() == "start\n"


def test_a_failed_run_is_not_started_again(slurm, tmp_path):
    job = submit(slurm, tmp_path, "exit 3\n", nodes=1)
    state = slurm.wait(job, ("COMPLETED", "FAILED"), 90)
    assert state["JobState"] == "FAILED" and state["ExitCode"] == "3:0" and state["Restarts"] == "0"


def test_two_jobs_on_one_node_get_different_ports():
    def ports(job):
        script = f"source {ROOT}/recipes/slurm/lib/ray.sh; {ROOT}/recipes/slurm/free_ports.sh 4 $(first_port)"
        environment = os.environ | {"SLURM_JOB_ID": str(job)}
        return set(subprocess.check_output(["bash", "-c", script], env=environment, text=True).split())

    taken = [ports(job) for job in range(100, 110)]
    assert all(len(one) == 4 for one in taken)
    assert len(set.union(*taken)) == 40


def test_the_port_of_the_head_is_left_to_it():
    """A head whose own first port was taken has one that its node would choose next."""
    command = [str(ROOT / "recipes/slurm/free_ports.sh"), "1", "20300"]
    (free,) = subprocess.check_output(command, text=True).split()
    environment = os.environ | {"HEAD_PORT": free}
    (other,) = subprocess.check_output(command, env=environment, text=True).split()
    assert int(other) > int(free)


def test_the_dry_run_submits_nothing_and_wrong_calls_say_why(slurm, tmp_path):
    recipe = tmp_path / "recipe.sh"
    recipe.write_text('echo "would run $*"\n')

    def call(*arguments):
        command = ["bash", str(ROOT / "recipes/slurm/submit.sh"), *arguments]
        return subprocess.run(command, env=slurm.environment, text=True, capture_output=True)

    size = ("--nodes", "2", "--gpus", "4", "--time", "04:00:00")
    shown = call(str(recipe), *size, "--partition=gpu", "--dry-run", "seed=5")
    assert shown.returncode == 0 and "would run seed=5 --dry-run" in shown.stdout
    for option in ("--nodes=2", "--gpus-per-node=4", "--time=04:00:00", "--signal=B:USR1@900", "--partition=gpu"):
        assert option in shown.stdout
    assert re.search(r"train\.sbatch seed=5", shown.stdout)
    evaluation = call("eval", *size, "--dry-run", "runs/x")
    assert "eval.sbatch runs/x" in evaluation.stdout and evaluation.stdout.count("--shard") == 4
    assert "no recipe nothing" in call("nothing", *size).stderr
    assert "--nodes must be" in call(str(recipe), "--nodes", "0", "--gpus", "1", "--time", "1").stderr
    assert "--time is missing" in call(str(recipe), "--nodes", "1", "--gpus", "1").stderr
    assert call("eval", *size).returncode == 2
