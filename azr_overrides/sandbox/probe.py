"""Measure the isolation: small programs attempt what must not be possible, on the path that every program
takes.

Each attempt runs in its own child, since a refusal may be a kill. An attempt that could not even be made
counts as not prevented.
"""

import asyncio
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path

from azr_overrides.sandbox.types import (
    IsolationLevel,
    IsolationReport,
    RunRequest,
    RunResult,
    Status,
    is_refusal,
)

_CTYPES = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise PermissionError(ctypes.get_errno())
"""

# name: program. It returns if the attempt succeeded and raises OSError if it was refused.
ATTEMPTS = {
    "read_file": """
def f(path, pid, tcp, udp, unix):
    open(path).read()
""",
    "write_file": """
def f(path, pid, tcp, udp, unix):
    open(path + ".new", "w").write("x")
""",
    "read_environment": """
def f(path, pid, tcp, udp, unix):
    open(f"/proc/{pid}/environ", "rb").read()
""",
    "connect_tcp": """
import _socket
def f(path, pid, tcp, udp, unix):
    _socket.socket().connect(("127.0.0.1", tcp))
""",
    "send_udp": """
import _socket
def f(path, pid, tcp, udp, unix):
    _socket.socket(2, 2).sendto(b"x", ("127.0.0.1", udp))
""",
    "connect_unix": """
import _socket
def f(path, pid, tcp, udp, unix):
    _socket.socket(1).connect(unix)
""",
    "fork": """
import os
def f(path, pid, tcp, udp, unix):
    if os.fork() == 0:
        os._exit(0)
""",
    "exec": """
import os
def f(path, pid, tcp, udp, unix):
    try:
        os.execv("/bin/true", ["true"])
    except FileNotFoundError:
        pass
""",
    "signal_parent": """
import os
def f(path, pid, tcp, udp, unix):
    os.kill(pid, 0)
""",
    "read_memory": _CTYPES
    + """
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def f(path, pid, tcp, udp, unix):
    buffer = ctypes.create_string_buffer(8)
    here = there = Vector(ctypes.addressof(buffer), 8)
    result = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    unmapped_there = ctypes.get_errno() == 14
    if not unmapped_there:
        checked(result)
""",
    "user_namespace": _CTYPES
    + """
def f(path, pid, tcp, udp, unix):
    checked(libc.unshare(0x10000000))
""",
}

FILE_ATTEMPTS = frozenset({"read_file", "write_file", "read_environment"})
OUTSIDE_ATTEMPTS = frozenset({"connect_tcp", "send_udp", "connect_unix", "signal_parent", "read_memory"})


async def measure(
    run: Callable[[RunRequest], Awaitable[tuple[RunResult, ...]]], layers: dict[str, str]
) -> IsolationReport:
    """Run every attempt and derive the level from what happened and from the layers that are on."""
    with tempfile.TemporaryDirectory(prefix="sandbox-probe-") as directory, _Listeners() as listeners:
        canary = Path(directory, "canary")
        canary.write_text("readable")
        canary.chmod(0o644)
        Path(directory).chmod(0o755)
        arguments = f"{str(canary)!r}, {os.getpid()}, {listeners.tcp_port}, {listeners.udp_port}, {listeners.name!r}"
        names = list(ATTEMPTS)
        answers = await asyncio.gather(*(run(RunRequest(ATTEMPTS[name], (arguments,))) for name in names))
        findings = {name: _finding(answer[0]) for name, answer in zip(names, answers, strict=True)}
    return IsolationReport(level_of(findings, layers), dict(layers), findings)


def level_of(findings: dict[str, str], layers: dict[str, str]) -> IsolationLevel:
    """The highest level whose layers are on and whose attempts were all refused."""
    refused = {name for name, finding in findings.items() if is_refusal(finding)}
    on = {name for name, state in layers.items() if state.startswith("on")}
    if refused >= ATTEMPTS.keys() and "seccomp" in on:
        return IsolationLevel.FULL if "landlock" in on else IsolationLevel.SECCOMP
    if refused >= FILE_ATTEMPTS and "landlock" in on:
        return IsolationLevel.LANDLOCK
    if refused >= OUTSIDE_ATTEMPTS and "namespaces" in on:
        return IsolationLevel.NAMESPACES
    return IsolationLevel.RLIMITS


def _finding(result: RunResult) -> str:
    if result.status is Status.POLICY:
        return "killed by the system call filter"
    if result.status is Status.OK:
        return "succeeded"
    refusals = (
        "PermissionError",
        "ProcessLookupError",
        "FileNotFoundError",
        "ConnectionRefusedError",
        "OSError",
    )
    if result.status is Status.EXCEPTION and result.error_type in (*refusals, "BlockingIOError"):
        return f"refused: {result.error_type}"
    return f"unknown: {result.status.value} {result.error_type} {result.message}".rstrip()


class _Listeners:
    """A TCP, a UDP and an abstract unix socket that a program must not reach."""

    def __enter__(self) -> "_Listeners":
        self._sockets = [
            socket.socket(socket.AF_INET, socket.SOCK_STREAM),
            socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        ]
        tcp, udp, unix = self._sockets
        self.name = f"\0sandbox-probe-{os.getpid()}-{id(self)}"
        tcp.bind(("127.0.0.1", 0))
        udp.bind(("127.0.0.1", 0))
        unix.bind(self.name)
        tcp.listen()
        unix.listen()
        self.tcp_port, self.udp_port = tcp.getsockname()[1], udp.getsockname()[1]
        return self

    def __exit__(self, *exception: object) -> None:
        for listener in self._sockets:
            listener.close()
