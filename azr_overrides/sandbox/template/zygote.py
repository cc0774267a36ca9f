"""The template process: imports once, forks one confined child per program, enforces wall-clock limits,
reaps.

It is single-threaded, holds no secrets (its environment is made up by the trainer) and never sees a program:
the trainer passes it one end of a socket pair, and the child that inherits it reads the request itself. It
ends when the trainer does: the control socket closes, and a process descriptor of the trainer becomes
readable.
"""

import array
import contextlib
import importlib
import marshal
import os
import select
import signal
import socket
import sys
import time

from . import child, confinement, memory, protocol, rehearsal, syscalls

MAX_EXTENSIONS = 4  # how often a child that the host kept waiting gets its wall-clock limit again


class Child:
    """One running child."""

    __slots__ = ("job", "pid", "pidfd", "started", "deadline", "wall_s", "cpu_s", "extensions", "cause")

    def __init__(self, job: int, pid: int, started: float, wall_s: float, cpu_s: int) -> None:
        self.job = job
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self.started = started
        self.deadline = started + wall_s
        self.wall_s = wall_s
        self.cpu_s = cpu_s
        self.extensions = 0
        self.cause = protocol.EXITED


class Template:
    """The event loop of the template process."""

    def __init__(self, control: socket.socket, confined: confinement.Confinement, trainer: int) -> None:
        self._control = control
        self._confined = confined
        self._trainer = trainer
        self._pid = os.getpid()
        self._children: dict[int, Child] = {}  # by process descriptor
        self._jobs: dict[int, Child] = {}
        self._poll = select.poll()
        for descriptor in (control.fileno(), trainer):
            self._poll.register(descriptor, select.POLLIN)

    def run(self) -> None:
        """Serve until the trainer is gone, then take every child along."""
        try:
            while True:
                for descriptor, _ in self._poll.poll(self._milliseconds_to_next_deadline()):
                    if descriptor == self._trainer:
                        return
                    if descriptor == self._control.fileno():
                        if not self._receive():
                            return
                    elif descriptor in self._children:
                        self._reap(self._children[descriptor])
                self._enforce_deadlines()
        except (BrokenPipeError, ConnectionResetError):
            return
        finally:
            for running in self._children.values():
                self._kill(running)

    def _milliseconds_to_next_deadline(self) -> int | None:
        if not self._children:
            return None
        deadline = min(running.deadline for running in self._children.values())
        return max(0, int((deadline - time.monotonic()) * 1000) + 1)

    def _receive(self) -> bool:
        message, ancillary, _, _ = self._control.recvmsg(64, socket.CMSG_SPACE(4))
        if not message:
            return False
        if message[:1] == b"K":
            _, job = protocol.KILL.unpack(message)
            running = self._jobs.get(job)
            if running is not None:
                running.cause = protocol.KILLED
                self._kill(running)
            return True
        _, job, memory, cpu_s, wall_ms = protocol.START.unpack(message)
        (connection,) = array.array("i", ancillary[0][2])
        try:
            self._start(job, connection, memory, cpu_s, wall_ms / 1000)
        except OSError:
            self._control.send(protocol.EXIT.pack(b"X", job, protocol.NOT_FORKED, 0, 0.0, 0.0, 0.0, 0))
        finally:
            os.close(connection)
        return True

    def _start(self, job: int, connection: int, memory: int, cpu_s: int, wall_s: float) -> None:
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            self._become_child(connection, memory, cpu_s)
        running = Child(job, pid, started, wall_s, cpu_s)
        self._children[running.pidfd] = self._jobs[job] = running
        self._poll.register(running.pidfd, select.POLLIN)

    def _become_child(self, connection: int, memory: int, cpu_s: int) -> None:
        try:
            os.setsid()
            os.dup2(1, 2)  # /dev/null; the template keeps its own stderr
            self._confined.lock_in(connection, self._pid, cpu_s, memory)
            child.serve(syscalls.ANSWER_FD)
        finally:
            os._exit(1)

    def _kill(self, running: Child) -> None:
        """The child has not been reaped, so its id can't have been given to another process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(running.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(running.pidfd, signal.SIGKILL)  # it may not lead its group yet

    def _reap(self, running: Child) -> None:
        may_have_forked = self._confined.install_filter is None
        if may_have_forked:
            self._kill(running)
        _, status, usage = os.wait4(running.pid, 0)
        self._poll.unregister(running.pidfd)
        os.close(running.pidfd)
        del self._children[running.pidfd], self._jobs[running.job]
        if may_have_forked:
            self._kill_orphans()
        wall = time.monotonic() - running.started
        times = usage.ru_utime, usage.ru_stime, wall
        message = protocol.EXIT.pack(b"X", running.job, running.cause, status, *times, usage.ru_maxrss)
        self._control.send(message)

    def _kill_orphans(self) -> None:
        """Without a system call filter a child can leave processes behind; they are ours, or the namespace's
        init's.
        """
        known = {running.pid for running in self._children.values()} | {self._confined.init_pid}
        for parent in filter(None, (self._pid, self._confined.init_pid)):
            for pid in _children_of(parent):
                if pid not in known:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                    if parent == self._pid:
                        os.waitpid(pid, 0)

    def _enforce_deadlines(self) -> None:
        now = time.monotonic()
        for running in self._children.values():
            if running.deadline > now:
                continue
            if running.extensions < MAX_EXTENSIONS and _is_starved(running):
                running.extensions += 1
                running.deadline = now + running.wall_s
                continue
            running.cause = protocol.OVERDUE
            running.deadline = now + 3600
            self._kill(running)


def _children_of(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


def _is_starved(running: Child) -> bool:
    """Whether the child wants a CPU that a busy host has not given it: runnable, with CPU time left."""
    try:
        with open(f"/proc/{running.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    state, ticks = fields[0], int(fields[11]) + int(fields[12])
    return state in "RD" and ticks / os.sysconf("SC_CLK_TCK") < running.cpu_s


def boot(control_fd: int) -> None:
    """Run the template on its end of a SEQPACKET socket; the first message holds its options, see
    ``worker.Worker.start``. Answers with one line for each layer, or with one that starts with ``error``.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a scheduler signals everyone; the trainer decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    options = marshal.loads(control.recv(1 << 20))
    trainer = os.pidfd_open(options["trainer_pid"])
    if os.getppid() != options["trainer_pid"]:
        return
    try:
        for name in options["preload"]:
            importlib.import_module(name)
        confined = confinement.prepare(**options["confinement"])
        if not confined.layers["landlock"].startswith("on"):
            for name in options["preload_without_landlock"]:
                importlib.import_module(name)
        rehearsal.rehearse()
    except Exception as error:
        control.send(f"error={type(error).__name__}: {error}".encode())
        return
    control.send("\n".join(f"{name}={state}" for name, state in confined.layers.items()).encode())
    for name in [name for name in sys.modules if name.split(".")[0] == __package__]:
        del sys.modules[name]
    memory.settle()
    Template(control, confined, trainer).run()
