"""Landlock: an unprivileged process gives up the file system, TCP, and signals to others (kernel 5.13 and
later).

The system call numbers are the same on every architecture. What older kernels don't know is left out, and the
level measured at start says what that amounts to.
"""

import os
import struct
import sysconfig
from pathlib import Path

from . import linux

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_SCOPE_ABSTRACT_UNIX_AND_SIGNALS = 0b11
_TCP_BIND_AND_CONNECT = 0b11


def abi_version() -> int:
    """The kernel's landlock version, 0 if it has none or it is switched off."""
    try:
        return linux.syscall(_CREATE_RULESET, None, 0, _GET_VERSION)
    except OSError:
        return 0


def standard_library_paths(site_packages: bool) -> dict[Path, int]:
    """Files that a program may read: path -> access bits.

    The library's directories are listed entry by entry, because in some layouts ``site-packages``, and with
    it whatever else is installed, lies inside. A directory may be listed without its files being readable.
    """
    paths: dict[Path, int] = {Path("/usr/share/zoneinfo"): _READ_FILE | _READ_DIR}
    for root in {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}:
        paths[root] = _READ_DIR
        for entry in root.iterdir():
            if entry.name not in ("site-packages", "dist-packages"):
                paths[entry] = _READ_FILE | (_READ_DIR if entry.is_dir() else 0)
    if site_packages:
        for name in ("purelib", "platlib"):
            paths[Path(sysconfig.get_path(name))] = _READ_FILE | _READ_DIR
    return {path: access for path, access in paths.items() if path.exists()}


def create_ruleset(readable: dict[Path, int]) -> int:
    """Return the descriptor of a ruleset that refuses everything but reading these paths.

    Raises OSError if the kernel has no landlock.
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


def restrict_self(ruleset: int) -> None:
    """Confine this process, for good. Needs no_new_privs. Raises OSError."""
    linux.syscall(_RESTRICT_SELF, ruleset, 0)
