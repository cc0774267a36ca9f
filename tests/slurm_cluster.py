"""A real SLURM cluster of two nodes on this machine: munged, slurmctld and one slurmd for each node."""

import getpass
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "squeue", "scancel")
_PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
ReturnToService=2
KillWait=5
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=8 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=8 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=60 OverSubscribe=FORCE:4
"""


def why_not() -> str | None:
    """Why no cluster can be started here, or None."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"SLURM is not installed ({', '.join(absent)}); on Debian: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd starts jobs as other users, so that it needs root"


class SlurmCluster:
    """Nodes n1 and n2; use it as a context manager, which leaves no process behind."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _PATH}
        self._daemons: list[subprocess.Popen] = []

    def __enter__(self) -> "SlurmCluster":
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        if self._daemons:
            self._try("scancel", "--user", getpass.getuser())
            _until(lambda: not self._try("squeue", "--noheader").strip(), 20)
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _start(self) -> None:
        folder = self.folder
        (folder / "state").mkdir()
        key = folder / "munge.key"
        key.write_bytes(secrets.token_bytes(64))
        key.chmod(0o600)
        port, first, second = _free_ports(3)
        config = _CONFIG.format(
            host=socket.gethostname(), user=getpass.getuser(), folder=folder, port=port, first=first, second=second
        )
        (folder / "slurm.conf").write_text(config)
        # Nothing here uses cgroups. Before 23.02 slurmd loads a plugin all the same; that of v1 then does nothing.
        version = subprocess.check_output(["slurmd", "-V"], env=self.environment, text=True).split()[1]
        plugin = "disabled" if tuple(map(int, version.split(".")[:2])) >= (23, 2) else "cgroup/v1"
        (folder / "cgroup.conf").write_text(f"CgroupPlugin={plugin}\nCgroupMountpoint={folder}\n")
        files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemon("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *files)
        assert _until((folder / "munge.socket").exists, 10), (folder / "munged.out").read_text()
        self._daemon("slurmctld", "-D")
        for node in ("n1", "n2"):
            self._daemon("slurmd", "-D", "-N", node)
        assert _until(lambda: self._try("sinfo", "-h", "-o", "%T %D").strip() == "idle 2", 30), self.logs()

    def _daemon(self, name: str, *arguments: str) -> None:
        output = (self.folder / f"{name}.out").open("a")
        self._daemons.append(
            subprocess.Popen(
                [name, *arguments], env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )
        )

    def logs(self) -> str:
        """The ends of the daemons' log files."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-1500:]}" for path in paths)

    def _try(self, *command: str) -> str:
        return subprocess.run(command, env=self.environment, text=True, capture_output=True).stdout

    def run(self, *command: str, **environment: str) -> str:
        """Standard output of a command in this cluster.

        Raises:
            AssertionError: it failed.
        """
        process = subprocess.run(command, env=self.environment | environment, text=True, capture_output=True)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def job(self, number: int) -> dict[str, str]:
        """Fields of `scontrol show job`."""
        words = self.run("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, number: int, states: Sequence[str], timeout: float) -> dict[str, str]:
        """The job as soon as it is in one of ``states``."""
        assert _until(lambda: self.job(number)["JobState"] in states, timeout), (self.job(number), self.logs())
        return self.job(number)


def _free_ports(count: int) -> list[int]:
    with_ports = [socket.socket() for _ in range(count)]
    for one in with_ports:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in with_ports]
    for one in with_ports:
        one.close()
    return ports


def _until(happened, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True
