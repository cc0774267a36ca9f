"""The system call filter without libseccomp: number tables for two architectures and a small BPF assembler.

The tables are checked against libseccomp in the tests, and both filters answer the same probes.
"""

import os
import struct
from collections.abc import Sequence

from . import syscalls


class SeccompUnavailable(RuntimeError):
    """No filter can be made here; the text says why."""


# name: (x86-64, aarch64); None where the architecture has no such call.
NUMBERS: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "ioctl": (16, 29),
    "pread64": (17, 67),
    "readv": (19, 65),
    "writev": (20, 66),
    "access": (21, None),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "shmget": (29, 194),
    "madvise": (28, 233),
    "getpid": (39, 172),
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "bind": (49, 200),
    "listen": (50, 201),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "exit": (60, 93),
    "kill": (62, 129),
    "uname": (63, 160),
    "semget": (64, 190),
    "msgget": (68, 186),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "sysinfo": (99, 179),
    "times": (100, 153),
    "ptrace": (101, 117),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "getppid": (110, 173),
    "setreuid": (113, 145),
    "setregid": (114, 143),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "rt_sigqueueinfo": (129, 138),
    "sigaltstack": (131, 132),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "mount": (165, 40),
    "umount2": (166, 39),
    "reboot": (169, 142),
    "init_module": (175, 105),
    "gettid": (186, 178),
    "tkill": (200, 130),
    "time": (201, None),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "exit_group": (231, 94),
    "tgkill": (234, 131),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "openat": (257, 56),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "faccessat": (269, 48),
    "unshare": (272, 97),
    "set_robust_list": (273, 99),
    "accept4": (288, 242),
    "rt_tgsigqueueinfo": (297, 240),
    "perf_event_open": (298, 241),
    "setns": (308, 268),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "finit_module": (313, 273),
    "getrandom": (318, 278),
    "memfd_create": (319, 279),
    "bpf": (321, 280),
    "execveat": (322, 281),
    "userfaultfd": (323, 282),
    "statx": (332, 291),
    "rseq": (334, 293),
    "pidfd_send_signal": (424, 424),
    "io_uring_setup": (425, 425),
    "pidfd_open": (434, 434),
    "clone3": (435, 435),
    "pidfd_getfd": (438, 438),
    "faccessat2": (439, 439),
    "process_madvise": (440, 440),
}
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, kernel's audit number

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_GREATER_EQUAL, _JUMP_BITS, _RETURN = (
    0x20,
    0x15,
    0x25,
    0x35,
    0x45,
    0x06,
)
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENT_OFFSET = (
    0,
    4,
    16,
)  # in struct seccomp_data; 8 bytes an argument
_X32_BIT = 0x40000000
_KILL_PROCESS, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_EPERM = 1


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _when_equal(number: int, block: bytes) -> bytes:
    """Run ``block``, which always returns, if the loaded value is ``number``."""
    return _instruction(_JUMP_EQUAL, number, 0, len(block) // 8) + block


def compile_filter(allow_open: bool, machine: str = "") -> bytes:
    """Compile the policy of ``syscalls`` for ``machine`` (default: this one).

    Raises SeccompUnavailable for an architecture without a table.
    """
    machine = machine or os.uname().machine
    if machine not in ARCHITECTURES:
        known = " and ".join(ARCHITECTURES)
        raise SeccompUnavailable(
            f"libsyscalls.so.2 is not installed and the built-in filter knows {known} only, not {machine}; "
            "install libseccomp (Debian: libseccomp2)"
        )
    column, audit = ARCHITECTURES[machine]

    def number(name: str) -> int | None:
        return NUMBERS[name][column]

    def answer(names: Sequence[str], action: int) -> bytes:
        known = [value for name in names if (value := number(name)) is not None]
        return b"".join(_when_equal(value, _instruction(_RETURN, action)) for value in known)

    refusal = _instruction(_RETURN, _ERRNO | _EPERM)
    code = _instruction(_LOAD, _ARCHITECTURE_OFFSET)
    code += _instruction(_JUMP_EQUAL, audit, 1, 0) + _instruction(_RETURN, _KILL_PROCESS)
    code += _instruction(_LOAD, _NUMBER_OFFSET)
    if machine == "x86_64":
        code += _instruction(_JUMP_GREATER_EQUAL, _X32_BIT, 0, 1) + _instruction(_RETURN, _KILL_PROCESS)
    code += answer(syscalls.ALLOWED, _ALLOW) + answer(syscalls.KILLED, _KILL_PROCESS)
    for name, errno in syscalls.REFUSED.items():
        code += answer([name], _ERRNO | errno)
    to_descriptor = (
        _instruction(_LOAD, _ARGUMENT_OFFSET)
        + _instruction(_JUMP_GREATER, syscalls.ANSWER_FD, 1, 0)
        + _instruction(_RETURN, _ALLOW)
        + refusal
    )
    read_only = (
        _instruction(_LOAD, _ARGUMENT_OFFSET + 2 * 8)
        + _instruction(_JUMP_BITS, syscalls.WRITING_FLAGS, 1, 0)
        + _instruction(_RETURN, _ALLOW)
        + refusal
    )
    blocks = [(name, to_descriptor) for name in syscalls.WRITES_TO_DESCRIPTOR]
    if allow_open:
        blocks.append((syscalls.OPENS_READ_ONLY, read_only))
    for name, block in blocks:
        value = number(name)
        assert value is not None
        code += _when_equal(value, block)
    return code + refusal
