"""Running programs in confined, disposable processes: one child for each program (calls) or each test (scripts).

The confinement is landlock, seccomp and resource limits from ``azr_overrides.sandbox``; which of them are in force is
measured by probe programs before the first job (``isolation.py``). Time limits are kept from outside the child.
"""

import json
import os
import queue
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from azr_overrides.sandbox import library
from eval.code import values

_PROJECT_ROOT = Path(__file__).resolve().parents[2]
_START_TIMEOUT_S = 60.0
_LOAD_LIMIT_S = 20.0  # for the program's own module level
_MAX_REPORT = 4096


class RunStatus(StrEnum):
    OK = "ok"
    EXCEPTION = "exception"  # raised, did not load, or lacks the function
    TIMEOUT = "timeout"
    OUTPUT_LIMIT = "output_limit"
    CRASH = "crash"  # ended without an answer; also memory, and os._exit
    POLICY = "policy"  # killed for a forbidden system call
    STOPPED = "stopped"  # by the caller, after a wrong answer


class RunnerFailure(RuntimeError):
    """The infrastructure failed, not the program."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 4096  # address space of the child
    output_bytes: int = 256 << 20  # everything that one job may send back


@dataclass(frozen=True, slots=True)
class CallRun:
    """``done`` calls returned before ``status`` ended the run; OK means all of them did."""

    status: RunStatus
    done: int
    detail: str = ""
    max_rss_kb: int = 0


@dataclass(frozen=True, slots=True)
class ScriptRun:
    status: RunStatus
    stdout: str
    detail: str = ""


class _Template:
    """One template process and the socket over which it takes jobs."""

    def __init__(self, layers: tuple[str, ...]) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(_PROJECT_ROOT)}
        confinement = {
            "wanted": layers,
            "readable": library.readable_paths(site_packages=True),
            "library_is_public": library.is_readable_by_all(),
        }
        environment |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self.process = subprocess.Popen(
            [sys.executable, "-s", "-m", "eval.code.template", str(theirs.fileno()), json.dumps(confinement)],
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        theirs.close()
        self.control.settimeout(_START_TIMEOUT_S)
        hello = self.control.recv(_MAX_REPORT)
        if not hello:
            stderr = self.process.communicate()[1].decode(errors="replace")
            raise RunnerFailure(f"the template process did not start: {stderr.strip()[-500:]}")
        self.layers: dict[str, str] = json.loads(hello)["layers"]

    def start(self, job: dict, stdin: str) -> socket.socket:
        ours, theirs = socket.socketpair()
        source = os.memfd_create("stdin")
        try:
            with open(source, "w", encoding="utf-8", errors="surrogatepass", newline="", closefd=False) as stream:
                stream.write(stdin)
            os.lseek(source, 0, os.SEEK_SET)
            socket.send_fds(self.control, [json.dumps(job).encode()], [theirs.fileno(), source])
        finally:
            os.close(source)
            theirs.close()
        return ours

    def kill_child(self) -> None:
        self.control.send(b"kill")

    def report(self, wall_s: float) -> dict:
        self.control.settimeout(wall_s + _START_TIMEOUT_S)
        message = self.control.recv(_MAX_REPORT)
        if not message:
            raise RunnerFailure("the template process ended")
        return json.loads(message)

    def close(self) -> None:
        self.control.close()
        self.process.kill()
        self.process.communicate()


class CodeRunner:
    """A pool of templates. Thread-safe: as many jobs run at once as there are templates.

    ``layers`` is what is attempted; leaving one out is for tests. Use it as a context manager.
    """

    def __init__(
        self,
        workers: int = 2,
        layers: tuple[str, ...] = ("namespaces", "landlock", "seccomp"),
        limits: Limits | None = None,
    ):
        self.limits = limits or Limits()
        self._layers = layers
        self._idle: queue.Queue[_Template] = queue.Queue()
        self._all: list[_Template] = []
        for _ in range(workers):
            self._idle.put(self._spawn())

    def __enter__(self) -> "CodeRunner":
        return self

    def __exit__(self, *_: object) -> None:
        for template in self._all:
            template.close()

    @property
    def layers(self) -> dict[str, str]:
        return dict(self._all[0].layers)

    def _spawn(self) -> _Template:
        template = _Template(self._layers)
        self._all.append(template)
        return template

    @contextmanager
    def _template(self) -> Iterator[_Template]:
        template = self._idle.get()
        try:
            yield template
        except (RunnerFailure, OSError):
            template.close()
            self._all.remove(template)
            template = self._spawn()
            raise
        finally:
            self._idle.put(template)

    def run_script(self, program: str, stdin: str, wall_s: float, prelude: bool = False) -> ScriptRun:
        """The program as a script with this standard input; its standard output is cut at the output limit."""
        request = {"mode": "script", "program": program, "prelude": prelude}
        output = bytearray()

        def collect(chunk: bytes) -> bool:
            output.extend(chunk)
            return len(output) <= self.limits.output_bytes

        report, overflow = self._converse(request, wall_s, lambda: wall_s, collect, stdin)
        status = RunStatus.OUTPUT_LIMIT if overflow else _status_of(report)
        return ScriptRun(status, bytes(output).decode("utf-8", "replace"), _detail(report))

    def run_calls(
        self,
        program: str,
        function: str,
        inputs: list[Any],
        limits_s: list[float],
        on_value: Callable[[int, Any, float], bool],
        *,
        prelude: bool = False,
        solution_class: bool = False,
        total_s: float = 600.0,
    ) -> CallRun:
        """Call ``function(*inputs[i])`` for each i in one child, in order.

        ``on_value(i, value, seconds)`` is called for each result and returns False to stop. ``limits_s[i]`` is the
        wall-clock limit of call i, ``total_s`` that of the whole child. A call that raises ends the run.
        """
        request = {
            "mode": "call",
            "program": program,
            "function": function,
            "inputs": [values.encode(list(arguments)) for arguments in inputs],
            "prelude": prelude,
            "solution_class": solution_class,
        }
        reader = _CallReader(limits_s, on_value, self.limits.output_bytes)
        report, _ = self._converse(request, total_s, reader.limit, reader.feed)
        if reader.status is not None:
            return CallRun(reader.status, reader.done, reader.detail, report["max_rss_kb"])
        if reader.done == len(inputs):
            return CallRun(RunStatus.OK, reader.done, "", report["max_rss_kb"])
        status = _status_of(report)
        status = RunStatus.CRASH if status is RunStatus.OK else status
        return CallRun(status, reader.done, _detail(report), report["max_rss_kb"])

    def _converse(
        self, request: dict, wall_s: float, limit: Callable[[], float], feed: Callable[[bytes], bool], stdin: str = ""
    ) -> tuple[dict, bool]:
        """One job: send the request, pass on what comes back. Returns the report, and whether ``feed`` refused."""
        with self._template() as template:
            channel = template.start({"wall_s": wall_s, "memory_mb": self.limits.memory_mb}, stdin)
            refused = timed_out = False
            with channel:
                body = json.dumps(request).encode()
                try:
                    channel.settimeout(_START_TIMEOUT_S)
                    channel.sendall(len(body).to_bytes(8, "big") + body)
                    started = time.monotonic()
                    while True:
                        channel.settimeout(max(0.001, min(limit(), wall_s - (time.monotonic() - started))))
                        chunk = channel.recv(1 << 20)
                        if not chunk:
                            break
                        if not feed(chunk):
                            refused = True
                            break
                except TimeoutError:
                    timed_out = True
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the child is gone; its report says why
                if refused or timed_out:
                    template.kill_child()
            report = template.report(wall_s)
        if timed_out:
            report["cause"] = "wall"
        return report, refused


class _CallReader:
    """Takes the lines of one child as they come, whatever it writes."""

    def __init__(self, limits_s: list[float], on_value: Callable[[int, Any, float], bool], max_bytes: int) -> None:
        self._limits = limits_s
        self._on_value = on_value
        self._budget = max_bytes
        self._buffer = bytearray()
        self._deadline = time.monotonic() + _LOAD_LIMIT_S
        self._ready = False
        self.done = 0
        self.status: RunStatus | None = None
        self.detail = ""

    def limit(self) -> float:
        return self._deadline - time.monotonic()

    def feed(self, chunk: bytes) -> bool:
        self._budget -= len(chunk)
        if self._budget < 0:
            return self._end(RunStatus.OUTPUT_LIMIT, "too much output")
        start = len(self._buffer)
        self._buffer += chunk
        while (end := self._buffer.find(b"\n", start)) >= 0:
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            start = 0
            if not self._take(line):
                return False
        return True

    def _end(self, status: RunStatus, detail: str = "") -> bool:
        self.status, self.detail = status, detail
        return False

    def _take(self, line: bytes) -> bool:
        try:
            frame = json.loads(line)
            if not isinstance(frame, dict):
                raise values.BadEncoding("not a frame")
            if "error" in frame:
                where = f"input {self.done}" if self._ready else "while loading"
                return self._end(RunStatus.EXCEPTION, f"{str(frame['error'])[:60]} ({where})")
            if not self._ready:
                self._ready = True
            else:
                value, seconds = values.decode(frame["v"]), float(frame["s"])
                if not self._on_value(self.done, value, seconds):
                    return self._end(RunStatus.STOPPED, f"input {self.done}")
                self.done += 1
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            return self._end(RunStatus.CRASH, f"malformed answer: {type(error).__name__}")
        if self.done == len(self._limits):
            return False
        self._deadline = time.monotonic() + self._limits[self.done]
        return True


def _status_of(report: dict) -> RunStatus:
    if report["cause"] == "wall":
        return RunStatus.TIMEOUT
    if report["signal"] == 31:  # SIGSYS
        return RunStatus.POLICY
    if report["signal"] == 24:  # SIGXCPU
        return RunStatus.TIMEOUT
    if report["signal"]:
        return RunStatus.CRASH
    if report["code"] == 0:
        return RunStatus.OK
    if report["code"] == 97:
        raise RunnerFailure("a child failed before it ran the program")
    return RunStatus.EXCEPTION


def _detail(report: dict) -> str:
    if report["signal"]:
        return f"killed by signal {report['signal']} after {report['cpu_s']:.1f} s of CPU"
    return f"exit code {report['code']}" if report["code"] else ""
