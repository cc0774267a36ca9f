"""The template's memory, arranged for forks.

A fresh child shares every page with its template and copies each one that it is the first to write to, which is most
of what a child costs. It writes where it allocates, so allocations should lie close together.
"""

import gc

from . import linux

_POOLED_SIZES = range(48, 513, 16)  # size classes of CPython's allocator, from the smallest that bytes can fill
_HOLES = 32  # of each size; more change nothing that was measured
_BYTES_OVERHEAD = b"".__sizeof__()

_fillers: list[bytes] = []


def settle() -> None:
    """Collect garbage, exempt what is left from later collections, and close the gaps that start-up left.

    Small objects of a child then come from fresh pages in one piece, not from single holes on many pages, and its
    first large block does not make the C library merge the template's free chunks.
    """
    gc.collect()
    _fillers.extend(bytes(size - _BYTES_OVERHEAD) for size in _POOLED_SIZES for _ in range(_HOLES))
    gc.freeze()
    linux.trim_heap()
