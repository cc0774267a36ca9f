"""The template process: forks one confined child for each job. Started by ``runner.py``, never imported by it.

It is single-threaded, holds no secrets, and sees neither programs nor results: each job brings one end of a socket,
and the forked child talks over it with the grader directly.
"""

import gc
import json
import os
import select
import signal
import socket
import sys
import time

from azr_overrides.sandbox.template import confinement, linux
from eval.code import child

_PRELOAD_TEXT = (
    "bisect collections copy datetime decimal fractions functools heapq io itertools json math operator "
    "random re statistics string typing numpy numpy.random"
)  # numpy needs system libraries that a child could not open
_PRELOAD = _PRELOAD_TEXT.split()


def _run_child(descriptors: list[int], job: dict, confined: confinement.Confinement, template: int) -> None:
    channel, source = descriptors
    os.setsid()
    request = child.receive_request(channel)
    child.arrange_standard_files(channel, source, request["mode"])
    confined.lock_in(channel, template, int(job["wall_s"]) + 2, job["memory_mb"] << 20)
    child.execute(request)


def _supervise(pid: int, wall_s: float, control: socket.socket) -> str:
    """Wait for the child, its deadline, or a message to kill it. Returns why it ended."""
    pidfd = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        poller.register(control, select.POLLIN)
        deadline = time.monotonic() + wall_s
        while (left := deadline - time.monotonic()) > 0:
            ready = {descriptor for descriptor, _ in poller.poll(left * 1000)}
            if pidfd in ready:
                return "exited"
            if control.fileno() in ready:
                if control.recv(16) == b"":
                    os.kill(pid, signal.SIGKILL)
                    sys.exit(0)
                return "killed"
        return "wall"
    finally:
        os.close(pidfd)


def main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    confined = confinement.prepare(**json.loads(sys.argv[2]), seccomp_backend="auto", first_pid=2)
    for name in _PRELOAD:
        __import__(name)
    gc.collect()
    gc.freeze()
    template = os.getpid()
    control.send(json.dumps({"layers": confined.layers}).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 4096, 2)
        if not message:
            return
        if not descriptors:
            continue  # a kill order that came too late
        job = json.loads(message)
        pid = os.fork()
        if pid == 0:
            try:
                _run_child(descriptors, job, confined, template)
            finally:
                os._exit(child.EXIT_HARNESS)
        for descriptor in descriptors:
            os.close(descriptor)
        cause = _supervise(pid, job["wall_s"], control)
        try:
            os.killpg(pid, signal.SIGKILL)  # the child is not reaped yet, so the number can't be another's
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        report = {
            "cause": cause,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0,
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else -1,
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "max_rss_kb": usage.ru_maxrss,
        }
        control.send(json.dumps(report).encode())


if __name__ == "__main__":
    main()
