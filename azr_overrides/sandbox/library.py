"""Where the standard library lies, and who may read it."""

import sysconfig
from pathlib import Path

from azr_overrides.sandbox.template.landlock import READ_DIR, READ_FILE


def readable_paths(site_packages: bool) -> dict[str, int]:
    """What programs may read in order to import: path -> landlock access bits.

    The library's directories are listed entry by entry, because in some layouts ``site-packages``, and with
    it whatever else is installed, lies inside. A directory may be listed without its files being readable.
    """
    paths = {Path("/usr/share/zoneinfo"): READ_FILE | READ_DIR}
    for root in {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}:
        paths[root] = READ_DIR
        for entry in root.iterdir():
            if entry.name not in ("site-packages", "dist-packages"):
                paths[entry] = READ_FILE | (READ_DIR if entry.is_dir() else 0)
    if site_packages:
        for name in ("purelib", "platlib"):
            paths[Path(sysconfig.get_path(name))] = READ_FILE | READ_DIR
    return {str(path): access for path, access in paths.items() if path.exists()}


def is_readable_by_all() -> bool:
    """Whether any user can import: every directory down to the standard library is open to all."""
    library = Path(sysconfig.get_path("stdlib"))
    return all(path.stat().st_mode & 0o005 == 0o005 for path in (library, *library.parents))
