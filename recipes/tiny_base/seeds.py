"""Seed files in AZR's JSONL schema, so that a run on the tiny base starts with references in its buffers.

``python -m recipes.tiny_base.seeds`` writes ``seeds/seed_io.jsonl`` (programs with one input, for code_o and
code_i) and ``seeds/code_f_seed_io.jsonl`` (programs with several inputs and a message). None is held out.
"""

import json
from pathlib import Path
from random import Random
from typing import Any

from recipes.tiny_base.documents import (
    GUESS_MAX_LINES,
    PROGRAM_STATEMENTS,
    PROPOSAL_STATEMENTS,
    message_for,
)
from recipes.tiny_base.language import argument_list
from recipes.tiny_base.sampling import sample

FOLDER = Path(__file__).parent / "seeds"
IO_FILE = "seed_io.jsonl"
CODE_F_FILE = "code_f_seed_io.jsonl"
SEED = 1717
ROWS = 64
PAIRS = 6


def io_rows(seed: int = SEED, count: int = ROWS) -> list[dict[str, Any]]:
    """Rows with distinct programs, one input and its output each; a pure function of its arguments."""
    rng = Random(f"{seed}/io")
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        sampled = sample(rng, PROPOSAL_STATEMENTS)
        source, example = sampled.program.source, sampled.examples[0]
        rows[source] = {
            "snippet": source,
            "input": argument_list(example.arguments),
            "output": repr(example.output),
            "imports": [],
            "original_snippet": source,
            "composite_functions": [],
        }
    return list(rows.values())


def code_f_rows(seed: int = SEED, count: int = ROWS) -> list[dict[str, Any]]:
    """Rows with distinct programs, ``PAIRS`` inputs, their outputs and a message each."""
    rng = Random(f"{seed}/code_f")
    rows: dict[str, dict[str, Any]] = {}
    while len(rows) < count:
        sampled = sample(rng, PROGRAM_STATEMENTS, PAIRS, max_lines=GUESS_MAX_LINES)
        source = sampled.program.source
        rows[source] = {
            "snippet": source,
            "inputs": [argument_list(example.arguments) for example in sampled.examples],
            "outputs": [repr(example.output) for example in sampled.examples],
            "message": message_for(sampled.program, sampled.examples[0].output),
            "imports": [],
        }
    return list(rows.values())


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, rows in ((IO_FILE, io_rows()), (CODE_F_FILE, code_f_rows())):
        path = FOLDER / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{len(rows)} rows in {path}")


if __name__ == "__main__":
    main()
