"""The trainer's handle on one template process, and on the jobs that run in its children."""

import array
import asyncio
import contextlib
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from time import monotonic

from azr_overrides.sandbox import library
from azr_overrides.sandbox.template import protocol
from azr_overrides.sandbox.types import WIDER_PRELOAD, RunRequest, RunResult, SandboxConfig, Status

logger = logging.getLogger(__name__)

# Appended, not inserted: this folder has modules named like those of the standard library.
_BOOT = """
import sys
sys.path.append(sys.argv[1])
from template import zygote
sys.path.pop()
zygote.boot(int(sys.argv.pop()))
"""
_STATUS_OF_TAG = {
    protocol.OK: Status.OK,
    protocol.EXCEPTION: Status.EXCEPTION,
    protocol.MEMORY: Status.MEMORY,
    protocol.BAD_INPUT: Status.BAD_INPUT,
    protocol.BAD_VALUE: Status.BAD_VALUE,
    protocol.OUTPUT_LIMIT: Status.OUTPUT_LIMIT,
}
_READ_SIZE = 1 << 16
_READ_LATER_S = 0.05


class TemplateFailed(RuntimeError):
    """A template process could not start; the text, a clause, says why."""


@dataclass(eq=False, slots=True)
class Job:
    """One request on its way through a child."""

    number: int
    request: RunRequest
    payload: bytes
    future: "asyncio.Future[tuple[RunResult, ...]]"
    parser: protocol.FrameParser
    retries: int = 0
    connection: socket.socket | None = None
    unsent: memoryview = field(default_factory=lambda: memoryview(b""))
    is_writing: bool = False
    is_reading: bool = False
    forged: bool = False  # the child broke the protocol
    started: float = 0.0

    def results(self, missing: Status, cpu_s: float = 0.0, wall_s: float = 0.0, rss_kb: int = 0):
        """One result an input, in order; ``missing`` is the status of inputs without an answer."""
        usage = {"cpu_s": cpu_s, "wall_s": wall_s, "max_rss_kb": rss_kb, "retries": self.retries}
        results = []
        for tag, text in [] if self.forged else self.parser.frames:
            status = _STATUS_OF_TAG[tag]
            if status is Status.OK:
                results.append(RunResult(status, value=text, **usage))
            elif status is Status.EXCEPTION:
                name, _, message = text.partition("\n")
                results.append(RunResult(status, error_type=name, message=message, **usage))
            else:
                results.append(RunResult(status, message=text, **usage))
        absent = RunResult(Status.PROTOCOL if self.forged else missing, **usage)
        return tuple(results + [absent] * (len(self.request.inputs) - len(results)))


class Worker:
    """One template process. ``on_done(worker, job, missing, cpu_s, wall_s, rss_kb)`` is called once for each
    launched job, with WORKER_LOST for an outcome that says nothing about the program; ``on_lost(worker)``
    once if the process ends before ``close``, after its jobs were reported.
    """

    def __init__(self, index: int, config: SandboxConfig, capacity: int, on_done: Callable, on_lost: Callable):
        self.index = index
        self.capacity = capacity
        self.jobs: dict[int, Job] = {}
        self.layers: dict[str, str] = {}
        self.ready = False
        self._config = config
        self._on_done = on_done
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen | None = None
        self._reading_timer: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int:
        """Process id of the template, 0 before it was started."""
        return self._process.pid if self._process else 0

    @property
    def free(self) -> int:
        return self.capacity - len(self.jobs) if self.ready else 0

    async def start(self) -> None:
        """Start the template and wait until it is ready. Raises TemplateFailed."""
        config = self._config
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        options = {
            "trainer_pid": os.getpid(),
            "preload": config.preload,
            "preload_without_landlock": WIDER_PRELOAD,
            "confinement": {
                "wanted": config.layers,
                "readable": library.readable_paths(config.site_packages),
                "library_is_public": library.is_readable_by_all(),
                "seccomp_backend": config.seccomp_backend,
                "first_pid": 100 + 7919 * self.index % 30_000,
            },
        }
        ours.send(marshal.dumps(options))
        isolated = [] if config.site_packages else ["-S"]
        with theirs:
            self._process = subprocess.Popen(
                # Not -I or -E: they would make Python ignore the hash seed.
                [sys.executable, "-s", "-P", "-B", *isolated, "-c", _BOOT]
                + [str(Path(__file__).parent), str(theirs.fileno())],
                env={
                    "PYTHONHASHSEED": str(self.index + 1),
                    "LANG": "C.UTF-8",
                    "PATH": "/usr/bin:/bin",
                    "LD_BIND_NOW": "1",  # symbols are looked up once, not in each child
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd="/",
                start_new_session=True,
            )
        self._control = ours
        try:
            hello = await asyncio.wait_for(self._loop.sock_recv(ours, 1 << 16), config.start_timeout_s)
        except (TimeoutError, OSError) as error:
            raise TemplateFailed(f"no sign of life within {config.start_timeout_s:g} s: {error!r}") from error
        if not hello:
            raise TemplateFailed(f"it ended at once, with status {await self._reap()}; see its messages on stderr")
        self.layers = dict(line.split("=", 1) for line in hello.decode().splitlines())
        if "error" in self.layers:
            raise TemplateFailed(self.layers["error"])
        self._loop.add_reader(ours, self._read_control)
        self.ready = True

    def launch(self, job: Job) -> None:
        """Start a child for ``job``."""
        request, config = job.request, self._config
        assert self._control is not None
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        job.connection, job.unsent, job.started = ours, memoryview(job.payload), monotonic()
        self.jobs[job.number] = job
        start = protocol.START.pack(
            b"R",
            job.number,
            (request.memory_mb or config.memory_mb) << 20,
            ceil(request.cpu_s or config.cpu_s),
            ceil(1000 * (request.wall_s or config.wall_s)),
        )
        self._write_request(job)
        if job.unsent:
            job.is_writing = True
            self._loop.add_writer(ours.fileno(), self._write_request, job)
        with theirs:
            descriptor = array.array("i", [theirs.fileno()])
            # A failure here means that the template is gone; the closed control socket will say so.
            with contextlib.suppress(OSError):
                self._control.sendmsg([start], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptor)])
        if self._reading_timer is None:
            self._reading_timer = self._loop.call_later(_READ_LATER_S, self._start_reading)

    def kill(self, job: Job) -> None:
        """Ask the template to kill the job's child; ``on_done`` follows."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(protocol.KILL.pack(b"K", job.number))

    def destroy(self) -> None:
        """Kill the template, and with it its children; ``on_lost`` follows."""
        if self._process is not None:
            self._process.kill()

    async def close(self) -> None:
        """End the template and everything it started, and release every descriptor."""
        self.ready = False
        if self._reading_timer is not None:
            self._reading_timer.cancel()
            self._reading_timer = None
        for job in list(self.jobs.values()):
            self._release(job)
        self.jobs.clear()
        if self._control is not None:
            self._loop.remove_reader(self._control)
            self._control.close()
            self._control = None
        await self._reap()

    async def _reap(self) -> int:
        """Wait for the template to end, which it does once the control socket is closed; kill it if not."""
        process = self._process
        if process is None:
            return 0
        try:
            return await asyncio.to_thread(process.wait, 5)
        except subprocess.TimeoutExpired:
            process.kill()
            return await asyncio.to_thread(process.wait)

    def _write_request(self, job: Job) -> None:
        connection = job.connection
        if connection is None:
            return
        try:
            job.unsent = job.unsent[connection.send(job.unsent) :]
        except BlockingIOError:
            return
        except OSError:  # the child has ended; its exit message says how
            job.unsent = memoryview(b"")
        if not job.unsent and job.is_writing:
            self._loop.remove_writer(connection.fileno())
            job.is_writing = False

    def _read_answer(self, job: Job) -> bool:
        """Take what has arrived. Return False once nothing more can come."""
        connection = job.connection
        if connection is None:
            return False
        try:
            data = connection.recv(_READ_SIZE)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._stop_reading(job)
            return False
        try:
            job.parser.feed(data)
        except protocol.ProtocolError:
            job.forged = True
            self._stop_reading(job)
            self.kill(job)
            return False
        return True

    def _start_reading(self) -> None:
        """Read along with the children that have lived for a while. Most are gone before that, with an answer that
        fits into the socket's buffer and is taken in one piece at the end, which costs the trainer less.
        """
        self._reading_timer = None
        for job in self.jobs.values():
            if job.connection is not None and not job.is_reading and not job.forged:
                job.is_reading = True
                self._loop.add_reader(job.connection.fileno(), self._read_answer, job)
        if self.jobs:
            self._reading_timer = self._loop.call_later(_READ_LATER_S, self._start_reading)

    def _stop_reading(self, job: Job) -> None:
        if job.is_reading and job.connection is not None:
            self._loop.remove_reader(job.connection.fileno())

    def _release(self, job: Job) -> None:
        if job.connection is not None:
            self._stop_reading(job)
            if job.is_writing:
                self._loop.remove_writer(job.connection.fileno())
                job.is_writing = False
            job.connection.close()
            job.connection = None

    def _read_control(self) -> None:
        assert self._control is not None
        try:
            message = self._control.recv(256)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if message:
            self._finish(*protocol.EXIT.unpack(message)[1:])
        else:
            self._lose()

    def _finish(self, number: int, cause: bytes, status: int, user: float, system: float, wall: float, rss: int):
        job = self.jobs.pop(number)
        while not job.forged and self._read_answer(job):
            pass
        self._release(job)
        try:
            job.parser.finish()
        except protocol.ProtocolError:
            # A child killed in the middle of a frame is no forger.
            job.forged = job.forged or cause == protocol.EXITED and os.WIFEXITED(status)
        limit = ceil(job.request.cpu_s or self._config.cpu_s)
        missing = _missing_status(cause, status, cpu_limit_reached=user + system >= limit)
        self._on_done(self, job, missing, user + system, wall, rss)

    def _lose(self) -> None:
        assert self._control is not None
        logger.warning("sandbox template %d (pid %d) ended unexpectedly", self.index, self.pid)
        self.ready = False
        self._loop.remove_reader(self._control)
        jobs, self.jobs = list(self.jobs.values()), {}
        for job in jobs:
            while not job.forged and self._read_answer(job):
                pass
            self._release(job)
            self._on_done(self, job, Status.WORKER_LOST, 0.0, monotonic() - job.started, 0)
        self._on_lost(self)


def _missing_status(cause: bytes, status: int, cpu_limit_reached: bool) -> Status:
    """What it means that a child ended without an answer."""
    if cause == protocol.OVERDUE:
        return Status.CPU_LIMIT if cpu_limit_reached else Status.TIMEOUT
    if cause == protocol.KILLED:
        return Status.CANCELLED
    if cause == protocol.NOT_FORKED:
        return Status.WORKER_LOST
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGSYS:
            return Status.POLICY
        if number == signal.SIGXCPU or number == signal.SIGKILL and cpu_limit_reached:
            return Status.CPU_LIMIT
        if number in (
            signal.SIGKILL,
            signal.SIGTERM,
            signal.SIGINT,
            signal.SIGHUP,
        ):  # a confined child can't do that
            return Status.WORKER_LOST
    return Status.CRASH
