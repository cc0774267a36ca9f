"""Pin complete lists of packages by the hash of each file: python -m recipes.lock_hashes OUT LIST...

Asks pip which files it would install for the running interpreter and platform, and writes them with their SHA-256. The
result fits this interpreter, this platform and these builds (such as a CPU build of torch) only. Any other file is
refused by ``pip install --no-deps --require-hashes -r OUT``, which is its purpose in continuous integration.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from packaging.utils import canonicalize_name


def files(lists: list[Path]) -> list[tuple[str, str, str]]:
    """Name, version and SHA-256 of each file that pip would install, by name.

    Raises:
        RuntimeError: pip finds no file for a line; the message is pip's.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", str(report)]
        wanted = [part for path in lists for part in ("-r", str(path))]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *wanted], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(done.stderr.strip())
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(
        (
            canonicalize_name(one["metadata"]["name"]),
            one["metadata"]["version"],
            one["download_info"]["archive_info"]["hashes"]["sha256"],
        )
        for one in found
    )


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("lists", type=Path, nargs="+")
    arguments = parser.parse_args(argv)
    try:
        found = files(arguments.lists)
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    names = " ".join(str(path) for path in arguments.lists)
    python = ".".join(platform.python_version_tuple()[:2])
    header = [
        f"# Made by `python -m recipes.lock_hashes {arguments.target} {names}`",
        f"# for {platform.python_implementation()} {python} on {platform.system()} {platform.machine()}.",
        "# Install with `pip install --no-deps --require-hashes -r`.",
    ]
    lines = [f"{name}=={version} --hash=sha256:{digest}" for name, version, digest in found]
    arguments.target.write_text("\n".join([*header, *lines]) + "\n", encoding="utf-8")
    print(f"{arguments.target}: {len(lines)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
