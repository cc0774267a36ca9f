"""The system call filter is the same policy whoever compiles it, on both architectures."""

import asyncio
import ctypes

import pytest

from azr_overrides.sandbox import IsolationLevel, Sandbox, SandboxConfig, SandboxError
from azr_overrides.sandbox.template import seccomp, seccomp_builtin, syscalls

NAMES = (*syscalls.ALLOWED, *syscalls.KILLED, *syscalls.REFUSED, *syscalls.WRITES_TO_DESCRIPTOR, "openat")


@pytest.fixture
def libseccomp():
    try:
        return seccomp.load_libseccomp()
    except OSError:
        pytest.skip("libseccomp.so.2 is not installed")


@pytest.mark.parametrize("machine", seccomp_builtin.ARCHITECTURES)
def test_the_number_tables_agree_with_libseccomp(libseccomp, machine):
    column, audit = seccomp_builtin.ARCHITECTURES[machine]
    for name, numbers in seccomp_builtin.NUMBERS.items():
        theirs = libseccomp.seccomp_syscall_resolve_name_arch(ctypes.c_uint32(audit), name.encode())
        assert numbers[column] == (theirs if theirs >= 0 else None), name


def test_the_tables_cover_the_policy_and_nothing_else():
    assert set(NAMES) == set(seccomp_builtin.NUMBERS)
    assert len(NAMES) == len(set(NAMES)), "a call is in two lists"


@pytest.mark.parametrize("machine", seccomp_builtin.ARCHITECTURES)
def test_the_builtin_filter_is_a_program_that_always_returns(machine):
    program = seccomp_builtin.compile_filter(allow_open=True, machine=machine)
    assert len(program) % 8 == 0 and len(program) // 8 < 4096  # BPF_MAXINSNS
    assert int.from_bytes(program[-8:-6], "little") == 0x06


def test_an_unknown_architecture_is_refused_with_advice():
    with pytest.raises(seccomp.SeccompUnavailable, match="install libseccomp"):
        seccomp_builtin.compile_filter(allow_open=True, machine="riscv64")


def test_without_libseccomp_the_builtin_filter_takes_over(monkeypatch):
    def missing() -> ctypes.CDLL:
        raise OSError("libseccomp.so.2: cannot open shared object file")

    monkeypatch.setattr(seccomp, "load_libseccomp", missing)
    assert seccomp.compile_filter(True)[1] == "builtin"
    with pytest.raises(seccomp.SeccompUnavailable, match="libseccomp"):
        seccomp.compile_filter(True, "libseccomp")


@pytest.mark.parametrize("backend", ["libseccomp", "builtin"])
@pytest.mark.parametrize("layers", [("landlock", "seccomp"), ("seccomp",)])
def test_both_filters_stop_every_probe(backend, layers):
    async def measured() -> IsolationLevel:
        config = SandboxConfig(seccomp_backend=backend, layers=layers, min_isolation="rlimits")
        async with Sandbox(config) as sandbox:
            assert sandbox.isolation.layers["seccomp"].startswith(f"on: {backend}")
            return sandbox.isolation.level

    if backend == "libseccomp":
        try:
            seccomp.load_libseccomp()
        except OSError:
            pytest.skip("libseccomp.so.2 is not installed")
    try:
        level = asyncio.run(measured())
    except SandboxError as error:
        pytest.skip(str(error))
    assert level >= IsolationLevel.SECCOMP
