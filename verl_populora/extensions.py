"""Parts that other installed packages bring, by entry point.

A package names a part in its own metadata, and a configuration uses that name; nothing has to be imported for it:

    [project.entry-points."verl_populora.matchmakers"]
    mine = "my_package:MyMatchmaker"
"""

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any


def installed_part(group: str, name: str) -> Callable[..., Any] | None:
    """What an installed package registers as ``name`` in the entry point group ``group``; None where none does.

    Raises:
        ValueError: two packages use the name, or the part can't be imported.
    """
    found = entry_points(group=group, name=name)
    if len(found) > 1:
        packages = ", ".join(sorted(one.dist.name for one in found if one.dist))
        raise ValueError(f"{name!r} in {group} comes from several packages ({packages}); uninstall all but one")
    for one in found:
        try:
            return one.load()
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{name!r} in {group} is {one.value}, which can't be imported: {error}") from error
    return None
