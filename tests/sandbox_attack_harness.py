"""Runs attack programs through the public API and reports every harmful effect that it can see.

    python -m tests.sandbox_attack_harness ATTACKS.jsonl --layers namespaces,landlock,seccomp

Prints one JSON object: the isolation report, and the effects as a list of [attack id, effect]. Runs as any user, with
nothing but the standard library, so that a test can start it as another user with another interpreter.
"""

import argparse
import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from azr_overrides.sandbox import RunRequest, RunResult, Sandbox, SandboxConfig, Status
from azr_overrides.tasks.types import Answer, Candidate, Outcome, Rejection, RejectReason, Task, TaskKind, Verdict
from azr_overrides.tasks.verification import VerificationConfig, Verifier

CPU_S, WALL_S, MEMORY_MB = 1, 2, 256
MARKER = "CANARY-" + secrets.token_hex(8)
TCP_PORT, UDP_PORT, UNIX_NAME = 18080, 18081, "\0canarysock"
BENIGN = (
    ("def f(x):\n    return x + 1", "41", "42"),
    ("import math\ndef f(x):\n    return math.pi > x", "3", "True"),
    ("def f(s):\n    return sorted(set(s))", "'banana'", "['a', 'b', 'n']"),
    ("import json\ndef f(x):\n    return json.loads(json.dumps(x))", "[1, {'a': None}]", "[1, {'a': None}]"),
)


class Canary:
    """What one attack must leave alone: files, and a harmless process of the same user."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        directory.chmod(0o777)
        (directory / "secret.txt").write_text(MARKER)
        (directory / "data.txt").write_text("intact")
        self.victim = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            env={"SECRET": MARKER},
            start_new_session=True,
        )
        (directory / "victim.pid").write_text(str(self.victim.pid))
        for path in directory.iterdir():
            path.chmod(0o666)

    def effects(self) -> list[str]:
        found = []
        names = {path.name for path in self.directory.iterdir()} ^ {"secret.txt", "data.txt", "victim.pid"}
        found += [f"file {name}" for name in sorted(names)]
        data = self.directory / "data.txt"
        if data.exists() and data.read_text() != "intact":
            found.append("data changed")
        state = Path(f"/proc/{self.victim.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if self.victim.poll() is not None or state in "TZX":
            found.append("victim stopped")
        return found

    def remove(self) -> None:
        self.victim.send_signal(signal.SIGKILL)
        self.victim.wait()


class Listeners:
    """Sockets that an attack must not reach."""

    def __init__(self) -> None:
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._tcp.bind(("127.0.0.1", TCP_PORT))
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", UDP_PORT))
        self._unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._unix.bind(UNIX_NAME)
        for listener in (self._tcp, self._unix):
            listener.listen()
        for listener in (self._tcp, self._udp, self._unix):
            listener.setblocking(False)

    def effects(self) -> list[str]:
        found = []
        for name, receive in (
            ("tcp", self._tcp.accept),
            ("udp", lambda: self._udp.recv(16)),
            ("unix", self._unix.accept),
        ):
            with contextlib.suppress(BlockingIOError):
                receive()
                found.append(f"{name} reached")
        return found

    def close(self) -> None:
        for listener in (self._tcp, self._udp, self._unix):
            listener.close()


def descendants(pid: int) -> set[int]:
    """Ids of all processes below ``pid``."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if fields[0] != "Z":
                    parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in found | {pid}} - found:
        found |= more
    return found


def shared_memory() -> set[str]:
    """Names of what outlives a process in memory."""
    names = {path.name for path in Path("/dev/shm").glob("*canary*")}  # other programs use the folder too
    segments = Path("/proc/sysvipc/shm")
    return names | {line.split()[1] for line in segments.read_text().splitlines()[1:]} if segments.exists() else names


async def attack(sandbox: Sandbox, spec: dict, directory: Path, gold: str) -> list[str]:
    """Try one attack in every part that a model can play; return its effects."""
    canary = Canary(directory)
    try:
        program = spec["code"].replace("{CANARY}", str(canary.directory))
        text = spec["input"].replace("{CANARY}", str(canary.directory))
        verifier = Verifier(sandbox, VerificationConfig(banned_words=(), max_value_chars=65_536))
        ((result,), solved) = await asyncio.gather(
            sandbox.run(RunRequest(program, (text,))), _solve(verifier, program, text, repr(gold))
        )
        effects = _effects_of_result(result, gold) + _effects_of_verdict(solved, gold)
        if spec["category"] != "resource":  # those only cost time here
            abduced, validated = await asyncio.gather(
                _abduce(verifier, program, text, repr(gold)),
                verifier.validate(Candidate(TaskKind.CODE_O, program, (text,))),
            )
            effects += _effects_of_verdict(abduced, gold) + _leaks(str(validated), gold)
            if isinstance(validated, Task) and spec["category"] == "determinism":
                effects.append("accepted as deterministic")
            if isinstance(validated, Rejection) and validated.reason is RejectReason.UNVERIFIED:
                effects.append("left the task undecided")
        return effects + canary.effects()
    finally:
        canary.remove()


async def _solve(verifier: Verifier, program: str, text: str, expected: str) -> Verdict:
    """The attack is a student's program for a code_f task with one shown and one hidden pair."""
    task = Task("t", TaskKind.CODE_F, "", ("0", text), ("0", expected))
    return await verifier.judge(task, Answer(program, True))


async def _abduce(verifier: Verifier, program: str, text: str, expected: str) -> Verdict:
    """The attack's program is a teacher's, its input a student's answer."""
    task = Task("t", TaskKind.CODE_I, program, ("0",), (expected,))
    return await verifier.judge(task, Answer(text, True))


def _effects_of_verdict(verdict: Verdict, gold: str) -> list[str]:
    return _leaks(str(verdict), gold) + ["judged correct"] * (verdict.outcome is Outcome.CORRECT)


def _effects_of_result(result: RunResult, gold: str) -> list[str]:
    effects = _leaks(f"{result.value} {result.error_type} {result.message}", gold)
    effects += [f"reported {word}" for word in _BOASTS if re.search(rf"\b{word}\b", result.value)]
    if result.cpu_s > CPU_S + 2:
        effects.append("used more CPU time than allowed")
    if result.max_rss_kb > (MEMORY_MB << 10):
        effects.append("used more memory than allowed")
    if result.status is Status.WORKER_LOST:
        effects.append("killed itself and was taken for a victim")
    return effects


# What attack programs return when they got through.
_BOASTS = ("GOT-USERNS", "GOT-PROC-MEM", "CONNECTED", "SYSV-SHM", "VM-READ")


def _leaks(text: str, gold: str) -> list[str]:
    secrets_in_reach = {"marker": MARKER, "token": os.environ["SECRET_TOKEN"], "expected answer": gold}
    return [f"leaked the {name}" for name, secret in secrets_in_reach.items() if secret in text]


async def run_attacks(specs: list[dict], layers: tuple[str, ...], backend: str) -> dict:
    """Run all attacks: those on the network one by one, so that a hit has an author, the others side by side."""
    gold = "GOLD-" + secrets.token_hex(6)
    os.environ["SECRET_TOKEN"] = "TOKEN-" + secrets.token_hex(8)
    before = shared_memory()
    listeners = Listeners()
    effects: list[tuple[str, str]] = []
    config = SandboxConfig(
        slots=4,
        cpu_s=CPU_S,
        wall_s=WALL_S,
        memory_mb=MEMORY_MB,
        layers=layers,
        seccomp_backend=backend,
        min_isolation="rlimits",
    )
    with tempfile.TemporaryDirectory(prefix="attacks-") as root:
        Path(root).chmod(0o755)
        async with Sandbox(config) as sandbox:
            resident = descendants(os.getpid())
            limit = asyncio.Semaphore(6)

            async def one(spec: dict) -> None:
                async with limit:
                    found = await attack(sandbox, spec, Path(root, spec["id"]), gold)
                effects.extend((spec["id"], effect) for effect in found)

            networked = [spec for spec in specs if spec["category"] == "network"]
            await asyncio.gather(*(one(spec) for spec in specs if spec not in networked))
            for spec in networked:
                await one(spec)
                effects += [(spec["id"], effect) for effect in listeners.effects()]
            effects += [("any", effect) for effect in listeners.effects()]
            for program, text, expected in BENIGN:
                (result,) = await sandbox.run(RunRequest(program, (text,)))
                if (result.status, result.value) != (Status.OK, expected):
                    effects.append(("any", f"a benign program now gives {result}"))
            left = descendants(os.getpid()) - resident
            effects += [("any", "left a process")] * bool(left)
            report = sandbox.isolation.as_dict()
    listeners.close()
    effects += [("any", f"left {name} in shared memory") for name in sorted(shared_memory() - before)]
    effects += [("any", "left a process at the end")] * bool(descendants(os.getpid()))
    return {"isolation": report, "effects": sorted(set(effects)), "attacks": len(specs)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("attacks", type=Path)
    parser.add_argument("--layers", default="namespaces,landlock,seccomp")
    parser.add_argument("--seccomp-backend", default="auto")
    options = parser.parse_args()
    specs = [json.loads(line) for line in options.attacks.read_text().splitlines()]
    layers = tuple(filter(None, options.layers.split(",")))
    print(json.dumps(asyncio.run(run_attacks(specs, layers, options.seccomp_backend))))


if __name__ == "__main__":
    main()
