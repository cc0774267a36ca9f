"""The system call filter: which calls a confined program may make.

The policy is a table of names (``syscalls``). The system's libseccomp turns it into a filter for the machine
it runs on; without that library a small assembler with number tables for x86-64 and aarch64 does
(``seccomp_builtin``). A filter is compiled once, in the template; each child only installs it.
"""

import ctypes
import errno
import os

from . import linux, seccomp_builtin, syscalls
from .seccomp_builtin import SeccompUnavailable

_MODE_FILTER = 2


def compile_filter(allow_open: bool, backend: str = "auto") -> tuple[bytes, str]:
    """Compile the policy into BPF instructions of 8 bytes; also return who compiled it.

    ``allow_open``: let programs open files for reading (only under landlock).

    Raises SeccompUnavailable, naming what is missing.
    """
    if backend in ("auto", "libseccomp"):
        try:
            return _compile_with_libseccomp(allow_open), "libseccomp"
        except OSError as error:
            if backend == "libseccomp":
                raise SeccompUnavailable(f"libseccomp.so.2 can't be used: {error}") from error
    return seccomp_builtin.compile_filter(allow_open), "builtin"


class _FilterProgram(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class Installation(linux.Call):
    """The call that confines a process, for good. It needs no_new_privs."""

    def __init__(self, instructions: bytes) -> None:
        self._program = _FilterProgram(len(instructions) // 8, instructions)  # must outlive the call
        super().__init__("prctl", linux.PR_SET_SECCOMP, _MODE_FILTER, ctypes.addressof(self._program), 0, 0)


# From libseccomp's public header.
_ACT_KILL_PROCESS, _ACT_ALLOW, _ACT_ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_ATTRIBUTE_OPTIMIZE, _BINARY_TREE = 8, 2
_COMPARE_LESS_OR_EQUAL, _COMPARE_MASKED_EQUAL = 3, 7


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def load_libseccomp() -> ctypes.CDLL:
    """Load the library with the signatures used here. Raises OSError if it is not installed."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_attr_set.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.seccomp_rule_add_array.argtypes = [
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.POINTER(_Comparison),
    ]
    return library


def _compile_with_libseccomp(allow_open: bool) -> bytes:
    library = load_libseccomp()
    context = library.seccomp_init(_ACT_ERRNO | errno.EPERM)
    if not context:
        raise OSError(errno.ENOMEM, "seccomp_init failed")
    try:
        library.seccomp_attr_set(context, _ATTRIBUTE_OPTIMIZE, _BINARY_TREE)  # an older library stays linear

        def add(name: str, action: int, *comparisons: _Comparison) -> None:
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number < 0:  # not a call of this architecture
                return
            array = (_Comparison * len(comparisons))(*comparisons)
            failure = library.seccomp_rule_add_array(context, action, number, len(comparisons), array)
            if failure:
                raise OSError(-failure, f"seccomp rule for {name}: {os.strerror(-failure)}")

        for name in syscalls.ALLOWED:
            add(name, _ACT_ALLOW)
        for name in syscalls.KILLED:
            add(name, _ACT_KILL_PROCESS)
        for name, number in syscalls.REFUSED.items():
            add(name, _ACT_ERRNO | number)
        for name in syscalls.WRITES_TO_DESCRIPTOR:
            add(name, _ACT_ALLOW, _Comparison(0, _COMPARE_LESS_OR_EQUAL, syscalls.ANSWER_FD, 0))
        if allow_open:
            add(
                syscalls.OPENS_READ_ONLY,
                _ACT_ALLOW,
                _Comparison(2, _COMPARE_MASKED_EQUAL, syscalls.WRITING_FLAGS, 0),
            )
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _export(library: ctypes.CDLL, context: int) -> bytes:
    descriptor = os.memfd_create("filter")
    try:
        failure = library.seccomp_export_bpf(context, descriptor)
        if failure:
            raise OSError(-failure, f"seccomp_export_bpf: {os.strerror(-failure)}")
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)
