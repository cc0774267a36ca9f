"""What goes into the sandbox and what comes out: configuration, requests, results, isolation levels."""

import sys
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import total_ordering

DEFAULT_PRELOAD = (
    "bisect",
    "collections",
    "collections.abc",
    "copy",
    "functools",
    "heapq",
    "itertools",
    "math",
    "operator",
    "re",
    "string",
    "typing",
)

# Where landlock is missing no file may be opened, so these are imported beforehand too.
WIDER_PRELOAD = (
    "abc",
    "array",
    "calendar",
    "cmath",
    "contextlib",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "json",
    "numbers",
    "pprint",
    "queue",
    "random",
    "statistics",
    "struct",
    "textwrap",
    "unicodedata",
)


class Status(StrEnum):
    """How one call of a program ended. Only the last two are failures of the infrastructure."""

    OK = "ok"  # returned a plain value
    EXCEPTION = "exception"  # raised, at load time or in the call; also no such function, or a syntax error
    TIMEOUT = "timeout"  # wall-clock limit
    CPU_LIMIT = "cpu_limit"
    MEMORY = "memory"
    OUTPUT_LIMIT = "output_limit"  # the value's canonical text is too long
    BAD_INPUT = "bad_input"  # the input is not the argument list of one call
    BAD_VALUE = "bad_value"  # the result is not a plain built-in value
    POLICY = "policy"  # killed by the kernel for a forbidden system call
    CRASH = "crash"  # the process ended without an answer
    PROTOCOL = "protocol"  # what came back is not a well-formed answer
    WORKER_LOST = "worker_lost"  # the template or the child was killed from outside, twice
    CANCELLED = "cancelled"  # the sandbox was closed first

    @property
    def is_infrastructure(self) -> bool:
        """True if the outcome says nothing about the program and must not be charged to its author."""
        return self in (Status.WORKER_LOST, Status.CANCELLED)


@total_ordering
class IsolationLevel(Enum):
    """How well a child was measured to be confined, in rising order. Compare with ``<``."""

    RLIMITS = "rlimits"  # resource limits only
    NAMESPACES = "namespaces"  # no network, no signals or memory of other processes; files are open
    LANDLOCK = "landlock"  # no files outside the standard library; processes and UDP remain
    SECCOMP = "seccomp"  # every probe refused, by a system call filter alone
    FULL = "full"  # every probe refused, by the filter and by landlock independently

    def __lt__(self, other: "IsolationLevel") -> bool:
        order = list(IsolationLevel)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One program and the inputs to call it with, all in one disposable process.

    Limits left at None are the sandbox's own. ``interpreter`` picks a template by its hash seed (0 or 1), so
    that a program run in both meets two different set orders; None leaves the choice to the scheduler.
    """

    program: str  # source text that defines ``function``
    inputs: tuple[str, ...]  # argument lists, for example ``"3, [1, 2]"``
    function: str = "f"
    interpreter: int | None = None
    cpu_s: float | None = None
    wall_s: float | None = None
    memory_mb: int | None = None

    def __post_init__(self) -> None:
        if self.interpreter not in (None, 0, 1):
            raise ValueError(f"interpreter is {self.interpreter!r}; it must be 0, 1 or None")


@dataclass(frozen=True, slots=True)
class RunResult:
    """The outcome of one call. Times and memory are those of the whole child process."""

    status: Status
    value: str = ""  # canonical text of the returned value, if OK; comes from the child, so parse before use
    error_type: str = ""  # class name, if EXCEPTION
    message: str = ""  # one line for people
    cpu_s: float = 0.0
    wall_s: float = 0.0
    max_rss_kb: int = 0
    retries: int = 0  # attempts lost to failures of the infrastructure


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """How many children, their limits, and the isolation without which the sandbox refuses to start.

    ``layers`` names the confinement that is attempted; leaving one out is for tests and debugging.
    """

    workers: int = 2  # template processes; each has its own hash seed
    slots: int = 4  # children alive at once, over all templates
    cpu_s: float = 10.0  # whole seconds are enforced, rounded up
    wall_s: float = 10.0  # doubled or more for a child that the host kept waiting for a CPU
    memory_mb: int = 512  # address space of a child
    max_output_bytes: int = 65_536  # canonical text of one value
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    site_packages: bool = False  # let programs import this environment's third-party packages
    min_isolation: str = "seccomp"
    layers: tuple[str, ...] = ("namespaces", "landlock", "seccomp")
    seccomp_backend: str = "auto"  # auto: libseccomp, else the built-in assembler; or one of the two by name
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        if self.workers < 2:
            raise ValueError(f"sandbox.workers is {self.workers}; two are needed to compare hash seeds")
        if self.slots < self.workers:
            raise ValueError(f"sandbox.slots is {self.slots}, less than one child for each of {self.workers} workers")
        for name in ("cpu_s", "wall_s", "memory_mb", "max_output_bytes", "start_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"sandbox.{name} must be positive, not {getattr(self, name)}")
        levels = [level.value for level in IsolationLevel]
        if self.min_isolation not in levels:
            raise ValueError(f"sandbox.min_isolation is {self.min_isolation!r}; choose one of {', '.join(levels)}")
        if unknown := set(self.layers) - {"namespaces", "landlock", "seccomp"}:
            raise ValueError(f"unknown sandbox.layers: {', '.join(sorted(unknown))}")
        if self.seccomp_backend not in ("auto", "libseccomp", "builtin"):
            raise ValueError(f"sandbox.seccomp_backend is {self.seccomp_backend!r}; choose auto, libseccomp or builtin")
        if not sys.platform.startswith("linux"):
            raise RuntimeError("the sandbox needs Linux: it confines programs with landlock and seccomp")


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """What the probe child found. ``findings`` maps each attempt to what happened to it."""

    level: IsolationLevel
    layers: dict[str, str] = field(default_factory=dict)  # what the template says it set up
    findings: dict[str, str] = field(default_factory=dict)  # for example {"read_file": "refused: PermissionError"}

    def as_dict(self) -> dict:
        """Plain values, for ``run.json``."""
        return {"level": self.level.value, "layers": dict(self.layers), "findings": dict(self.findings)}

    def summary(self) -> str:
        """One line for logs."""
        layers = ", ".join(f"{name}: {state}" for name, state in self.layers.items())
        open_doors = [name for name, finding in self.findings.items() if not is_refusal(finding)]
        doors = f"; not prevented: {', '.join(open_doors)}" if open_doors else ""
        return f"sandbox isolation {self.level.value} ({layers}){doors}"


def is_refusal(finding: str) -> bool:
    """True if a probe's finding means that the attempt was stopped."""
    return finding.startswith(("refused", "killed"))
