"""Landlock: an unprivileged process gives up the file system, TCP, and signals to others (kernel 5.13 and
later).

The system call numbers are the same on every architecture. What older kernels don't know is left out, and the
level measured at start says what that amounts to.
"""

import os
import struct

from . import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_RULE_PATH_BENEATH = 1
READ_FILE, READ_DIR = 1 << 2, 1 << 3
_SCOPE_ABSTRACT_UNIX_AND_SIGNALS = 0b11
_TCP_BIND_AND_CONNECT = 0b11


def abi_version() -> int:
    """The kernel's landlock version, 0 if it has none or it is switched off."""
    try:
        return linux.syscall(_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def create_ruleset(readable: dict[str, int]) -> int:
    """Return the descriptor of a ruleset that refuses everything but reading.

    ``readable`` maps paths to access bits, READ_FILE or READ_DIR, for them and what is below. Raises OSError
    if the kernel has no landlock.
    """
    abi = abi_version()
    all_file_accesses = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(abi, 16)) - 1
    attributes = struct.pack("=Q", all_file_accesses)
    if abi >= 4:
        attributes += struct.pack("=Q", _TCP_BIND_AND_CONNECT)
    if abi >= 6:
        attributes += struct.pack("=Q", _SCOPE_ABSTRACT_UNIX_AND_SIGNALS)
    ruleset = linux.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    for path, access in readable.items():
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            rule = struct.pack("=Qi", access, descriptor)
            linux.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        finally:
            os.close(descriptor)
    return ruleset


def restriction(ruleset: int) -> linux.Call:
    """The call that confines a process, for good. It needs no_new_privs."""
    return linux.Call("syscall", _RESTRICT_SELF, ruleset, 0)
