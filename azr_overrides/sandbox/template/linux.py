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


class Call:
    """A C library call whose arguments are converted once, so that a fresh child only has to make it.

    Every page that a child touches is copied from its template, which is most of what a child costs.
    """

    def __init__(self, function: str, *arguments: int | bytes | None) -> None:
        self._name = function
        self._function = getattr(_libc, function)
        self._arguments = [
            ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_void_p(value) for value in arguments
        ]

    def __call__(self) -> int:
        """Return the call's result. Raise OSError if it is negative."""
        result = self._function(*self._arguments)
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{self._name}: {os.strerror(number)}")
        return result


def prctl(option: int, argument: int) -> None:
    """Raise OSError if the kernel refuses."""
    Call("prctl", option, argument, 0, 0, 0)()


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """A raw system call; bytes are passed by address. Raise OSError if it fails."""
    return Call("syscall", number, *arguments)()


def unshare(flags: int) -> None:
    """Move this process into new namespaces. Raise OSError if the kernel refuses."""
    Call("unshare", flags)()


def drop_capabilities() -> None:
    """Give up every capability; with no_new_privs they can't come back."""
    Call("capset", struct.pack("=Ii", _CAPABILITY_VERSION_3, 0), bytes(24))()


def trim_heap() -> None:
    """Merge the C library's free chunks and give whole pages of them back, where that library is glibc."""
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
