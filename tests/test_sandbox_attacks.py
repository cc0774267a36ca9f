"""Attack programs: none gets anywhere at level full, and no more than documented at weaker ones.

Runs the file that SANDBOX_ATTACKS names (or the shared collection, where it exists) and our own small one: as the
user who runs the tests, and if that is root as an ordinary user too.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SMALL = ROOT / "tests/data/attacks_small.jsonl"
LARGE = Path(os.environ.get("SANDBOX_ATTACKS", ROOT / "../shared/sandbox/attacks.jsonl"))
NOBODY = 65534

# What remains at weaker levels, by attack; docs/sandbox.md explains it.
KILLS_ITSELF = {"kill_parent", "killpg", "raw_kill_ctypes", "kill_all", "stop_parent", "pidfd_kill", "sigqueue_ctypes"}
KERNEL_SURFACE = {"unshare_userns", "io_uring", "sysv_shm", "netlink"}
FILES = {
    "read_secret",
    "read_secret_io",
    "read_secret_os",
    "read_importlib",
    "unlink_file",
    "rename_file",
    "symlink",
    "hard_link",
    "chmod_file",
    "disk_fill",
    "list_home",
    "shm_persist",
    "any",  # a file in /dev/shm, found at the end
    "proc_self_mem",
    "proc_listing",
}
REMAINDER = {
    "full": set(),
    "seccomp": set(),
    "landlock": KILLS_ITSELF | KERNEL_SURFACE,
    "namespaces": KILLS_ITSELF | KERNEL_SURFACE | FILES,
}


def run_harness(attacks: Path, python: str, folder: Path, user: int | None, *options: str) -> dict:
    """Run the harness with ``python``, as ``user`` if given, on a copy of the project that anyone can read."""
    done = subprocess.run(
        [python, "-B", "-m", "tests.sandbox_attack_harness", str(attacks), *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        user=user,
        group=user,
        extra_groups=[] if user else None,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def public_copy():
    """The packages that the harness needs, and the attacks, where an ordinary user can read them.

    Not below pytest's own folder, which is closed to other users.
    """
    with tempfile.TemporaryDirectory(prefix="attacked-") as folder:
        Path(folder).chmod(0o755)
        yield _filled(Path(folder))


def _filled(folder: Path) -> Path:
    for package in ("azr_overrides/sandbox", "azr_overrides/tasks"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").mkdir()
    for file in ("azr_overrides/__init__.py", "tests/__init__.py", "tests/sandbox_attack_harness.py"):
        shutil.copy(ROOT / file, folder / file)
    attacks = SMALL.read_text() + (LARGE.read_text() if LARGE.exists() else "")
    (folder / "attacks.jsonl").write_text(attacks)
    return folder


@pytest.fixture(scope="module")
def ordinary(public_copy):
    """(interpreter, user id) for an ordinary user: ourselves, or nobody with an interpreter that it can run."""
    if os.geteuid() != 0:
        return sys.executable, None
    check = "import sys; sys.path.insert(0, '.'); import azr_overrides.tasks.verification"
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            subprocess.run(
                [python, "-B", "-c", check],
                cwd=public_copy,
                user=NOBODY,
                group=NOBODY,
                extra_groups=[],
                check=True,
                capture_output=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python, NOBODY
    pytest.skip("no Python 3.11 that an ordinary user can run")


def assert_contained(found: dict) -> None:
    level = found["isolation"]["level"]
    remaining = [effect for effect in found["effects"] if effect[0] not in REMAINDER[level]]
    assert not remaining, f"at level {level}: {remaining}"


@pytest.mark.slow
def test_no_attack_succeeds(public_copy):
    """As the user who runs the tests, with everything on."""
    found = run_harness(public_copy / "attacks.jsonl", sys.executable, public_copy, None)
    if found["isolation"]["level"] not in ("full", "seccomp"):
        pytest.skip(f"this machine offers level {found['isolation']['level']} only")
    assert found["attacks"] >= 30
    assert found["effects"] == []


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the tests run as an ordinary user already")
def test_no_attack_succeeds_for_an_ordinary_user(public_copy, ordinary):
    python, user = ordinary
    found = run_harness(public_copy / "attacks.jsonl", python, public_copy, user)
    if found["isolation"]["level"] not in ("full", "seccomp"):
        pytest.skip(f"this machine offers level {found['isolation']['level']} only")
    assert found["effects"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_children_of_root_become_nobody_where_they_can_import(public_copy, ordinary):
    python, _ = ordinary
    found = run_harness(SMALL, python, public_copy, None)
    assert found["isolation"]["layers"]["user"] == "nobody"
    assert found["effects"] == []


@pytest.mark.slow
@pytest.mark.parametrize("layers", ["seccomp", "namespaces,landlock", "namespaces"])
def test_weaker_levels_leave_the_documented_remainder(public_copy, ordinary, layers):
    """Only with a PID namespace or the filter: without both, some attacks would end every process of the user."""
    python, user = ordinary
    found = run_harness(public_copy / "attacks.jsonl", python, public_copy, user, "--layers", layers)
    if not all(found["isolation"]["layers"][layer].startswith("on") for layer in layers.split(",")):
        pytest.skip(f"this machine lacks one of {layers}")
    assert_contained(found)
