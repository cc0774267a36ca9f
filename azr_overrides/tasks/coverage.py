"""How much of the space of program structures the population has visited, measured online.

Method, in the order in which it happens:

1. A program's syntax tree is normalised: names become one symbol, constants their type; annotations and
   docstrings go. What remains is its structure: statements, operators, calls of built-ins and methods.
2. Its features are all downward paths of three nodes and all pairs of neighbouring statements. A feature that
   occurs 2, 4 or 8 times counts as two, three or four features: a longer program is not the same program.
3. The feature set becomes a MinHash sketch (Broder, 1997) of 64 numbers; the share of equal numbers in two
   sketches estimates the Jaccard similarity of the sets with a standard error of at most 0.063.
4. Leader clustering (Hartigan, 1975): a program joins the most similar cluster founded so far if that
   similarity reaches the threshold, else it founds a new cluster.

The default threshold of 0.5 leaves room on both sides: programs that differ in names and constants are always
one cluster, and small programs sampled at random keep founding new ones at a falling rate.

Clusters depend on the order of programs and on nothing else: no machine, process or random state. A cluster
takes 128 bytes; one program costs a fraction of a millisecond up to some ten thousand clusters.
"""

import ast
import builtins
import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from azr_overrides.tasks.complexity import parse

HASHES = 64
MAX_OCCURRENCE_BIT = 3

_BUILTINS = frozenset(dir(builtins))
_SKIPPED_FIELDS = frozenset({"annotation", "returns", "ctx", "type_comment", "type_params"})
_IN_LABEL = (ast.operator, ast.unaryop, ast.boolop, ast.cmpop)
_MULTIPLIERS, _OFFSETS = (
    np.array(
        [
            int.from_bytes(hashlib.blake2b(f"{part}{index}".encode(), digest_size=8).digest()) | 1
            for index in range(HASHES)
        ],
        dtype=np.uint64,
    )[:, None]
    for part in ("multiplier", "offset")
)


@dataclass(frozen=True, slots=True)
class CoverageStep:
    """What one batch of programs added."""

    new: int  # clusters founded by this batch
    total: int  # clusters founded so far
    distinct_rate: float  # distinct clusters in this batch / programs in it, in [0, 1]; 0 for an empty batch


class CoverageTracker:
    """Counts clusters of program structure.

    Args:
        threshold: similarity in (0, 1] from which two programs are of one cluster; lower is coarser.
    """

    def __init__(self, threshold: float = 0.5) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold must be in (0, 1], got {threshold}")
        self.threshold = threshold
        self._sketches = np.empty((256, HASHES), dtype=np.uint16)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, program: str) -> bool:
        """Whether ``program`` founds a new cluster. Raises ValueError for text that is no Python program."""
        before = self._count
        return self.cluster(program) == before

    def add_batch(self, programs: Iterable[str]) -> CoverageStep:
        """Add one step's valid programs, in the order given."""
        before = self._count
        clusters = [self.cluster(program) for program in programs]
        distinct = len(set(clusters)) / len(clusters) if clusters else 0.0
        return CoverageStep(self._count - before, self._count, distinct)

    def cluster(self, program: str) -> int:
        """The 0-based number of the cluster that ``program`` joins or founds."""
        sketch = structure_sketch(program)
        if self._count:
            equal = np.count_nonzero(self._sketches[: self._count] == sketch, axis=1)
            nearest = int(equal.argmax())
            if equal[nearest] >= self.threshold * HASHES:
                return nearest
        self._append(sketch)
        return self._count - 1

    def state_dict(self) -> dict[str, Any]:
        """JSON-able: the threshold and one hexadecimal string a cluster."""
        sketches = self._sketches[: self._count].astype("<u2")
        return {"threshold": self.threshold, "sketches": [row.tobytes().hex() for row in sketches]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``.

        Raises:
            ValueError: it was made with another threshold or another sketch length.
        """
        if state["threshold"] != self.threshold:
            raise ValueError(
                f"coverage was measured with threshold {state['threshold']}, this tracker has "
                f"{self.threshold}: the counts would not be comparable; keep the threshold of the resumed run"
            )
        rows = [np.frombuffer(bytes.fromhex(row), dtype="<u2") for row in state["sketches"]]
        if any(len(row) != HASHES for row in rows):
            raise ValueError(f"coverage state holds sketches of another length than {HASHES}")
        self._count = 0
        for row in rows:
            self._append(row.astype(np.uint16))

    def _append(self, sketch: np.ndarray) -> None:
        if self._count == len(self._sketches):
            self._sketches = np.concatenate([self._sketches, np.empty_like(self._sketches)])
        self._sketches[self._count] = sketch
        self._count += 1


def structure_sketch(program: str) -> np.ndarray:
    """MinHash sketch of the program's structure, shape ``(HASHES,)``, uint16."""
    hashed = np.array([zlib.crc32(feature.encode()) for feature in structure_features(program)], dtype=np.uint64)
    mixed = (hashed * _MULTIPLIERS + _OFFSETS) >> np.uint64(32)  # multiply-shift: products wrap around at 2**64
    return (mixed.min(axis=1) & np.uint64(0xFFFF)).astype(np.uint16)


def structure_features(program: str) -> set[str]:
    """Features of the normalised syntax tree; equal for programs that differ in names and constants only."""
    tree = parse(program)
    local = frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    counts: Counter[str] = Counter()
    stack: list[tuple[ast.AST, str, str]] = [(tree, "", "")]
    while stack:
        node, parent, grandparent = stack.pop()
        label = _label(node, local)
        counts[f"{grandparent}>{parent}>{label}"] += 1
        previous = ""
        for child in _children(node):
            stack.append((child, label, parent))
            if isinstance(child, ast.stmt):
                following = _label(child, local)
                counts[f"{previous};{following}"] += 1
                previous = following
    return {
        f"{feature}*{1 << bit}"
        for feature, count in counts.items()
        for bit in range(min(count.bit_length() - 1, MAX_OCCURRENCE_BIT) + 1)
    }


def _label(node: ast.AST, local: frozenset[str]) -> str:
    """What a node is, without names and values: its class, its operator, the built-in or method it calls."""
    name = type(node).__name__
    match node:
        case ast.Constant(value=value):
            return f"{name}:{type(value).__name__}"
        case ast.BinOp(op=op) | ast.UnaryOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            return f"{name}:{type(op).__name__}"
        case ast.Compare(ops=ops):
            return f"{name}:{','.join(type(op).__name__ for op in ops)}"
        case ast.Call(func=ast.Attribute(attr=method)):
            return f"{name}:.{method}"
        case ast.Call(func=ast.Name(id=function)) if function in local:
            return f"{name}:local"
        case ast.Call(func=ast.Name(id=function)) if function in _BUILTINS:
            return f"{name}:{function}"
    return name


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Children that carry structure: operators and called names are in the label of their parent already."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            yield node.func.value
        elif not isinstance(node.func, ast.Name):
            yield node.func
        yield from node.args
        yield from node.keywords
        return
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED_FIELDS:
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _IN_LABEL) and not _is_docstring(child):
                yield child


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
