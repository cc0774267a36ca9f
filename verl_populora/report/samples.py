"""Which tasks to show: they say more about a curriculum than its averages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from verl_populora.rundir import Record

MAX_CODE_LINES = 40


@dataclass(frozen=True, slots=True)
class SampleGroup:
    title: str
    note: str
    tasks: tuple[Record, ...]


def choose_samples(proposals: Sequence[Record], count: int = 2) -> list[SampleGroup]:
    """The hardest unsolved, the most learnable and the easiest of valid proposals, ``count`` of each.

    Records without a teacher are attempts at tasks of the buffer, not proposals, and are left out.
    Among equals the more (for the easiest: the less) complex program comes first, then the later one.
    """
    valid = [
        record
        for record in proposals
        if record["valid"] and record["teacher"] is not None and record.get("solve_rate") is not None
    ]

    def best(candidates: list[Record], key: Callable[[Record], tuple[float, ...]]) -> tuple[Record, ...]:
        return tuple(sorted(candidates, key=key)[:count])

    return [
        SampleGroup(
            "Hardest unsolved",
            "No attempt solved them.",
            best(
                [task for task in valid if task["solve_rate"] == 0],
                lambda task: (-_size(task), -task["step"]),
            ),
        ),
        SampleGroup(
            "Most learnable",
            "Solve rate closest to one half.",
            best(
                [task for task in valid if 0 < task["solve_rate"] < 1],
                lambda task: (abs(task["solve_rate"] - 0.5), -_size(task), -task["step"]),
            ),
        ),
        SampleGroup(
            "Easiest",
            "Every attempt solved them.",
            best([task for task in valid if task["solve_rate"] == 1], lambda task: (_size(task), -task["step"])),
        ),
    ]


def code_html(program: str) -> str:
    """Highlighted, escaped HTML of at most `MAX_CODE_LINES` lines."""
    lines = program.rstrip().splitlines()
    shown = "\n".join(lines[:MAX_CODE_LINES])
    if len(lines) > MAX_CODE_LINES:
        shown += f"\n# ... {len(lines) - MAX_CODE_LINES} more lines"
    return highlight(shown, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip("\n")


def _size(task: Record) -> float:
    """One number for how complex a program is; only its order matters."""
    measured = task.get("complexity") or {}
    return measured.get("cyclomatic", 0) + measured.get("ast_depth", 0) + measured.get("lines", 0)
