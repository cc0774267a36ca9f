"""Confinement in two steps: the template prepares what can be shared, each child then locks itself in.

Order matters in the child: the parent-death signal is cleared by a change of credentials, landlock and
seccomp need no_new_privs, and after the filter is installed nothing else can be set up.
"""

import contextlib
import os
import resource
import select
import signal

from . import landlock, linux, seccomp, syscalls

NOBODY = 65534
MAX_OPEN_FILES = 32


class Confinement:
    """What the template holds ready for its children."""

    def __init__(self, become_nobody: bool) -> None:
        self.become_nobody = become_nobody
        self.layers: dict[str, str] = {}  # layer -> what was set up, or why not
        self.before_closing: list[linux.Call] = []  # to make while prepared descriptors are still open
        self.install_filter: linux.Call | None = None
        self.init_pid = 0  # first process of the children's PID namespace

    def lock_in(self, connection: int, template_pid: int, cpu_s: int, memory_bytes: int) -> None:
        """Confine this process, a fresh child, for good, and keep no descriptor but its standard three and
        ``connection``, which becomes ``syscalls.ANSWER_FD``. Raises OSError if a prepared layer fails.
        """
        set_limit = resource.setrlimit
        set_limit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
        set_limit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))
        set_limit(resource.RLIMIT_NPROC, (0, 0))
        set_limit(resource.RLIMIT_NOFILE, (MAX_OPEN_FILES, MAX_OPEN_FILES))
        if self.become_nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
        for call in self.before_closing:
            call()
        if os.getppid() not in (template_pid, 0):  # 0: the template is outside the PID namespace
            os._exit(1)
        os.dup2(connection, syscalls.ANSWER_FD)
        os.closerange(syscalls.ANSWER_FD + 1, 1 << 20)
        if self.install_filter is not None:
            self.install_filter()


def prepare(
    wanted: tuple[str, ...],
    readable: dict[str, int],
    library_is_public: bool,
    seccomp_backend: str,
    first_pid: int,
) -> Confinement:
    """Set up, in the template, every wanted layer that this machine has. One that is missing is recorded.

    Args:
        wanted: of namespaces, landlock, seccomp.
        readable: paths that programs may read, with their landlock access bits.
        library_is_public: whether any user can import, so that children of root may become nobody.
        seccomp_backend: auto, libseccomp or builtin.
        first_pid: where a new PID namespace starts to count, so that two templates don't use the same ids.
    """
    confinement = Confinement(become_nobody=os.geteuid() == 0 and library_is_public)
    _prepare_namespaces(confinement, "namespaces" in wanted, first_pid)
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_CHILD_SUBREAPER, 1)
    linux.prctl(linux.PR_SET_NO_NEW_PRIVS, 1)
    die_with_parent = linux.Call("prctl", linux.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    confinement.before_closing.append(die_with_parent)
    _prepare_landlock(confinement, "landlock" in wanted, readable)
    _prepare_seccomp(confinement, "seccomp" in wanted, seccomp_backend)
    for limit in (resource.RLIMIT_FSIZE, resource.RLIMIT_CORE):
        resource.setrlimit(limit, (0, 0))
    if confinement.become_nobody:
        confinement.layers["user"] = "nobody"
    else:
        linux.drop_capabilities()
        confinement.layers["user"] = f"uid {os.getuid()}, no capabilities"
    return confinement


def _prepare_landlock(confinement: Confinement, wanted: bool, readable: dict[str, int]) -> None:
    if not wanted:
        confinement.layers["landlock"] = "off: not wanted"
        return
    try:
        ruleset = landlock.create_ruleset(readable)
        confinement.before_closing.append(landlock.restriction(ruleset))
        confinement.layers["landlock"] = f"on: ABI {landlock.abi_version()}"
    except OSError as error:
        confinement.layers["landlock"] = f"off: {error.strerror}"


def _prepare_seccomp(confinement: Confinement, wanted: bool, backend: str) -> None:
    if not wanted:
        confinement.layers["seccomp"] = "off: not wanted"
        return
    # Without landlock nothing says which files may be read, so none may: only preloaded modules can be
    # imported.
    allow_open = confinement.layers["landlock"].startswith("on")
    try:
        instructions, compiler = seccomp.compile_filter(allow_open, backend)
    except seccomp.SeccompUnavailable as error:
        confinement.layers["seccomp"] = f"off: {error}"
        return
    confinement.install_filter = seccomp.Installation(instructions)
    confinement.layers["seccomp"] = f"on: {compiler}"


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
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{uid} {uid} 1")
    _write("/proc/self/gid_map", f"{gid} {gid} 1")


def _fork_init(first_pid: int) -> int:
    """Fork the first process of the new PID namespace, which waits for the death of the template."""
    template = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid:
        os.close(template)
        return pid
    linux.prctl(linux.PR_SET_DUMPABLE, 0)
    linux.prctl(linux.PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
    died_before = select.poll()
    died_before.register(template, select.POLLIN)
    if died_before.poll(0):
        os._exit(0)
    with contextlib.suppress(OSError):
        _write("/proc/sys/kernel/ns_last_pid", str(first_pid))
    linux.drop_capabilities()
    os.closerange(0, 1 << 20)
    while True:
        signal.pause()


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
