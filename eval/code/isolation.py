"""How well model code is confined, found out by trying: probe programs run in the runner like any other program."""

from dataclasses import dataclass, field

from azr_overrides.sandbox.types import IsolationLevel
from eval.code.runner import CodeRunner, RunStatus
from eval.types import UsageError

# Each prints "open" only after its attempt has succeeded.
_PROBES = {
    "read_file": "open('/etc/passwd').read(); print('open')",
    "write_file": "open('/tmp/populora_eval_probe', 'w').write('x'); print('open')",
    "tcp": "import socket; socket.create_server(('127.0.0.1', 0)); print('open')",
    "udp": "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('127.0.0.1', 9)); print('open')",
    "fork": "import os; pid = os.fork()\nif pid == 0: os._exit(0)\nprint('open')",
    "exec": "import subprocess; subprocess.run(['/bin/true'], check=True); print('open')",
    "signal": "import os; os.kill({pid}, 0); print('open')",
    "memory": "open('/proc/{pid}/mem', 'rb').read(0); print('open')",
}
_BEYOND_NAMESPACES = {"tcp", "udp", "signal", "memory"}
_BEYOND_LANDLOCK = {"read_file", "write_file", "memory"}


@dataclass(frozen=True, slots=True)
class Isolation:
    """The measured level, the layers that were set up, and what each probe met."""

    level: IsolationLevel
    layers: dict[str, str] = field(default_factory=dict)
    findings: dict[str, str] = field(default_factory=dict)


def measure(runner: CodeRunner) -> Isolation:
    """Run every probe. A probe that crashes or is killed counts as refused; only printed proof counts as open."""
    findings = {}
    for name, program in _PROBES.items():
        result = runner.run_script(program.replace("{pid}", str(runner.template_pid)), "", wall_s=10.0)
        if result.stdout.strip() == "open":
            findings[name] = "open"
        else:
            findings[name] = "killed" if result.status is RunStatus.POLICY else "refused"
    is_open = {name for name, finding in findings.items() if finding == "open"}
    layers = runner.layers
    active = {name for name in ("landlock", "seccomp", "namespaces") if layers.get(name, "").startswith("on")}
    if not is_open and {"landlock", "seccomp"} <= active:
        level = IsolationLevel.FULL
    elif not is_open and "seccomp" in active:
        level = IsolationLevel.SECCOMP
    elif "landlock" in active and not is_open & _BEYOND_LANDLOCK:
        level = IsolationLevel.LANDLOCK
    elif "namespaces" in active and not is_open & _BEYOND_NAMESPACES:
        level = IsolationLevel.NAMESPACES
    else:
        level = IsolationLevel.RLIMITS
    return Isolation(level, layers, findings)


def require(isolation: Isolation, minimum: str) -> None:
    """Raises UsageError when the measured level is below ``minimum``."""
    if isolation.level < IsolationLevel(minimum):
        is_open = ", ".join(name for name, finding in isolation.findings.items() if finding == "open")
        layers = "; ".join(f"{name} {state}" for name, state in isolation.layers.items())
        raise UsageError(
            f"model code would run with isolation {isolation.level.value!r}, below the minimum {minimum!r} "
            f"({layers}; not prevented: {is_open or 'nothing'}). Grade on a machine with landlock and seccomp, or "
            f"accept the risk with --min-isolation {isolation.level.value}"
        )
