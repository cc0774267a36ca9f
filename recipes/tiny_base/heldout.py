"""The held-out tasks: a fixed set of code_o, code_i and code_f tasks that no training document contains.

``python -m recipes.tiny_base.heldout`` writes ``heldout.jsonl``, one task a line::

    {"kind": "code_o", "program": "...", "inputs": ["..."], "outputs": ["..."], "message": ""}

The programs come from the generator and lie in the held-out tenth of its programs (``sampling.is_held_out``).
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from azr_overrides.tasks.types import Task, TaskKind
from azr_overrides.tasks.verification import task_id
from recipes.tiny_base.documents import GUESS_MAX_LINES, message_for
from recipes.tiny_base.generator import statement_count
from recipes.tiny_base.language import argument_list
from recipes.tiny_base.sampling import Sampled, sample, sample_informative

HELDOUT_FILE = Path(__file__).parent / "heldout.jsonl"
SEED = 4242
TASKS_PER_CELL = 12
STATEMENTS = {TaskKind.CODE_O: range(1, 8), TaskKind.CODE_I: range(1, 6), TaskKind.CODE_F: range(1, 4)}
"""Lengths of the programs of each kind, the return included; with a kind, a cell of the set."""
PAIRS = 6
"""Input/output pairs of a code_f task, of which the first half is shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the file."""

    kind: TaskKind
    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    message: str = ""

    def task(self) -> Task:
        return Task(
            task_id(self.kind, self.program, self.inputs),
            self.kind,
            self.program,
            self.inputs,
            self.outputs,
            message=self.message,
            author="heldout",
        )


def load_heldout(path: Path = HELDOUT_FILE) -> list[Task]:
    """The held-out tasks in the order of the file.

    Raises:
        ValueError: a line of the file is not a held-out task.
    """
    tasks = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            row = Row(
                **{
                    **row,
                    "kind": TaskKind(row["kind"]),
                    **{key: tuple(row[key]) for key in ("inputs", "outputs")},
                }
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}, line {number}: not a held-out task: {error!r}") from error
        tasks.append(row.task())
    return tasks


def make_rows(seed: int = SEED, per_cell: int = TASKS_PER_CELL) -> list[Row]:
    """``per_cell`` tasks with distinct programs for each cell; a pure function of its arguments."""
    rows: list[Row] = []
    for kind, lengths in STATEMENTS.items():
        for statements in lengths:
            rng = Random(f"{seed}/{kind}/{statements}")
            cell: dict[str, Row] = {}
            while len(cell) < per_cell:
                sampled = _sample(rng, kind, statements)
                if statement_count(sampled.program.source) == statements:
                    cell.setdefault(sampled.program.source, _row(kind, sampled))
            rows += cell.values()
    return rows


def _sample(rng: Random, kind: TaskKind, statements: int) -> Sampled:
    """A held-out program with about this many statements; compound ones make it longer than was asked."""
    body = max(0, statements - 1 - rng.choice((0, 0, 1)))
    weights = [0.0] * body + [1.0]
    if kind is TaskKind.CODE_O:
        return sample(rng, weights, held_out=True)
    if kind is TaskKind.CODE_I:
        return sample_informative(rng, weights, max_lines=GUESS_MAX_LINES, held_out=True)
    return sample(rng, weights, PAIRS, max_lines=GUESS_MAX_LINES, nesting=0.05, held_out=True)


def _row(kind: TaskKind, sampled: Sampled) -> Row:
    examples = sampled.examples if kind is TaskKind.CODE_F else sampled.examples[:1]
    return Row(
        kind,
        sampled.program.source,
        tuple(argument_list(example.arguments) for example in examples),
        tuple(repr(example.output) for example in examples),
        message_for(sampled.program, examples[0].output) if kind is TaskKind.CODE_F else "",
    )


def main() -> None:
    lines = [json.dumps(asdict(row)) + "\n" for row in make_rows()]
    HELDOUT_FILE.write_text("".join(lines), encoding="utf-8")
    print(f"{len(lines)} tasks in {HELDOUT_FILE}")


if __name__ == "__main__":
    main()
