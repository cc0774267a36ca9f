"""The few Linux calls that Python's standard library lacks, through ctypes."""

import ctypes
import os
import struct

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def prctl(option: int, argument: int, *more: int) -> None:
    """Raise OSError if the kernel refuses."""
    values = [ctypes.c_ulong(value) for value in (argument, *more, 0, 0, 0)][:4]
    _checked(_libc.prctl(option, *values), f"prctl({option})")


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raise OSError if the kernel refuses."""
    _checked(_libc.unshare(flags), "unshare")


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs they can't come back."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(ctypes.c_char_p(header), ctypes.c_char_p(bytes(24))), "capset")


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """A raw system call; bytes are passed by address. Raise OSError if it fails."""
    converted = [
        ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_void_p(value) for value in arguments
    ]
    return _checked(_libc.syscall(ctypes.c_long(number), *converted), f"system call {number}")
