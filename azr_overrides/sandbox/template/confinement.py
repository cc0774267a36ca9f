"""Confinement in two steps: the template prepares what can be shared, each child then locks itself in.

Order matters in the child: the parent-death signal is cleared by a change of credentials, landlock and
seccomp need no_new_privs, and after the filter is installed nothing else can be set up.
"""

import contextlib
import os
import resource
import select
import signal
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from . import landlock, linux, seccomp, syscalls

NOBODY = 65534
MAX_OPEN_FILES = 32


@dataclass
class Confinement:
    """What the template holds ready for its children."""

    layers: dict[str, str] = field(default_factory=dict)  # layer -> what was set up, or why not
    ruleset: int | None = None  # landlock, a descriptor
    filter: seccomp.Filter | None = None
    become_nobody: bool = False
    init_pid: int = 0  # first process of the children's PID namespace

    def lock_in(self, connection: int, template_pid: int, cpu_s: int, memory_bytes: int) -> None:
        """Confine this process, a fresh child, for good, and keep no descriptor but its standard three and
        ``connection``, which becomes ``syscalls.ANSWER_FD``. Raises OSError if a prepared layer fails.
        """
        for limit, (soft, hard) in {
            resource.RLIMIT_AS: (memory_bytes, memory_bytes),
            resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
            resource.RLIMIT_FSIZE: (0, 0),
            resource.RLIMIT_CORE: (0, 0),
            resource.RLIMIT_NPROC: (0, 0),
            resource.RLIMIT_NOFILE: (MAX_OPEN_FILES, MAX_OPEN_FILES),
        }.items():
            resource.setrlimit(limit, (soft, hard))
        if self.become_nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        linux.drop_capabilities()
        linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() not in (template_pid, 0):  # 0: the template is outside the PID namespace
            os._exit(1)
        if self.ruleset is not None:
            landlock.restrict_self(self.ruleset)
        os.dup2(connection, syscalls.ANSWER_FD)
        os.closerange(syscalls.ANSWER_FD + 1, 1 << 20)
        if self.filter is not None:
            seccomp.install(self.filter)


def prepare(
    wanted: tuple[str, ...], site_packages: bool, seccomp_backend: str, first_pid: int
) -> Confinement:
    """Set up, in the template, every wanted layer that this machine has. A missing one is recorded, not
    raised.

    ``first_pid``: where a new PID namespace starts counting, so that two templates don't hand out the same
    ids.
    """
    confinement = Confinement()
    confinement.become_nobody = os.geteuid() == 0 and _library_is_readable_by_all()
    _prepare_namespaces(confinement, "namespaces" in wanted, first_pid)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    _prepare_landlock(confinement, "landlock" in wanted, site_packages)
    _prepare_seccomp(confinement, "seccomp" in wanted, seccomp_backend)
    confinement.layers["user"] = (
        "nobody" if confinement.become_nobody else f"uid {os.getuid()}, no capabilities"
    )
    return confinement


def _prepare_landlock(confinement: Confinement, wanted: bool, site_packages: bool) -> None:
    if not wanted:
        confinement.layers["landlock"] = "off: not wanted"
        return
    try:
        confinement.ruleset = landlock.create_ruleset(landlock.standard_library_paths(site_packages))
        confinement.layers["landlock"] = f"on: ABI {landlock.abi_version()}"
    except OSError as error:
        confinement.layers["landlock"] = f"off: {error.strerror}"


def _prepare_seccomp(confinement: Confinement, wanted: bool, backend: str) -> None:
    if not wanted:
        confinement.layers["seccomp"] = "off: not wanted"
        return
    try:
        # Without landlock nothing says which files may be read, so none may: only preloaded modules can be
        # imported.
        confinement.filter = seccomp.compile_filter(
            allow_open=confinement.ruleset is not None, backend=backend
        )
        confinement.layers["seccomp"] = f"on: {confinement.filter.backend}"
    except seccomp.SeccompUnavailable as error:
        confinement.layers["seccomp"] = f"off: {error}"


def _prepare_namespaces(confinement: Confinement, wanted: bool, first_pid: int) -> None:
    """Give future children their own PID, network and IPC namespaces.

    The template stays outside the PID namespace, as the parent that reaps and kills, and its first child
    becomes the namespace's init: when that one dies, which it does with the template, the kernel kills
    whatever is left inside.
    """
    if not wanted:
        confinement.layers["namespaces"] = "off: not wanted"
        return
    flags = linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWIPC
    try:
        if os.geteuid() == 0:  # no user namespace: children could not become nobody in it
            linux.unshare(flags)
        else:
            _unshare_as_user(flags)
        confinement.init_pid = _fork_init(first_pid)
        confinement.layers["namespaces"] = "on: pid, net, ipc"
    except OSError as error:
        confinement.layers["namespaces"] = f"off: {error.strerror}"


def _unshare_as_user(flags: int) -> None:
    uid, gid = os.getuid(), os.getgid()
    linux.unshare(flags | linux.CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")


def _fork_init(first_pid: int) -> int:
    template_pidfd = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid:
        os.close(template_pidfd)
        return pid
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
    died_before = select.poll()
    died_before.register(template_pidfd, select.POLLIN)
    if died_before.poll(0):
        os._exit(0)
    with contextlib.suppress(OSError):
        Path("/proc/sys/kernel/ns_last_pid").write_text(str(first_pid))
    os.closerange(0, 1 << 20)
    while True:
        signal.pause()


def _library_is_readable_by_all() -> bool:
    """Whether any user can import: every directory down to the standard library is open to all."""
    library = Path(sysconfig.get_path("stdlib"))
    return all(path.stat().st_mode & 0o005 == 0o005 for path in (library, *library.parents))
