"""Write a complete, pinned list of packages from a short one: python -m recipes.lock IN OUT [--exclude FILE ...]

``IN`` names what this project uses itself, pinned, one requirement a line. ``OUT`` gets these and everything that they
need in turn, at the versions that are installed in the running environment, so that ``pip install --no-deps -r OUT``
rebuilds it. Packages listed in a line ``# leave out: name, ...`` of ``IN`` are never followed. ``--exclude`` drops what
another list holds already.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_LEAVE_OUT = re.compile(r"#\s*leave out:\s*(.*)")


def read(path: Path) -> tuple[list[Requirement], set[str]]:
    """Requirements and names to leave out.

    Raises:
        ValueError: a line is not a pinned requirement.
    """
    wanted, left_out = [], set()
    for number, raw in enumerate(path.read_text().splitlines(), start=1):
        if match := _LEAVE_OUT.match(raw.strip()):
            left_out |= {canonicalize_name(name.strip()) for name in match[1].split(",")}
        line = raw.split("#")[0].strip()
        if not line:
            continue
        requirement = Requirement(line)
        if not any(spec.operator == "==" for spec in requirement.specifier):
            raise ValueError(f"{path}:{number}: {line} is not pinned with ==")
        wanted.append(requirement)
    return wanted, left_out


def closure(wanted: list[Requirement], left_out: set[str]) -> dict[str, str]:
    """Installed version of every package that ``wanted`` needs, by canonical name.

    Raises:
        ValueError: a requirement is not installed, or at another version than it is pinned to.
    """
    versions: dict[str, str] = {}
    done: set[tuple[str, str]] = set()
    queue = [(requirement, "") for requirement in wanted]
    while queue:
        requirement, parent = queue.pop()
        name = canonicalize_name(requirement.name)
        if name in left_out:
            continue
        try:
            found = distribution(requirement.name)
        except PackageNotFoundError:
            raise ValueError(f"{requirement} (needed by {parent or 'the list itself'}) is not installed") from None
        public = found.version.split("+")[0]
        if not parent and not requirement.specifier.contains(public, prereleases=True):
            raise ValueError(f"{requirement} is pinned, but {found.version} is installed")
        versions[name] = public
        for extra in ("", *sorted(requirement.extras)):
            if (name, extra) not in done:
                done.add((name, extra))
                queue += [(needed, name) for needed in _needs(found.requires or [], extra)]
    return versions


def _needs(lines: list[str], extra: str) -> Iterator[Requirement]:
    for line in lines:
        requirement = Requirement(line)
        if requirement.marker is None:
            if not extra:
                yield requirement
        elif requirement.marker.evaluate({"extra": extra}):
            yield requirement


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--exclude", type=Path, nargs="*", default=[])
    arguments = parser.parse_args(argv)
    wanted, left_out = read(arguments.source)
    versions = closure(wanted, left_out)
    for other in arguments.exclude:
        for requirement in read(other)[0]:
            versions.pop(canonicalize_name(requirement.name), None)
    header = [
        f"# Made by `python -m recipes.lock {arguments.source} {arguments.target}`; edit {arguments.source} instead.",
        "# Complete: install with `pip install --no-deps -r`.",
    ]
    lines = [f"{name}=={version}" for name, version in sorted(versions.items())]
    arguments.target.write_text("\n".join([*header, *lines]) + "\n")
    print(f"{arguments.target}: {len(lines)} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
