"""Seed files in AZR's JSONL schema, one task a line.

    code_o, code_i, code_e  snippet, input, output, imports, original_snippet, composite_functions
    code_f                  snippet, inputs, outputs, message, imports

Keys that start with an underscore are optional type names. A row is a claim: its output was computed
elsewhere and may be missing or not a plain value, so rows become candidates that
`azr_overrides.seeding.verify_seeds` runs through the verifier.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from azr_overrides.tasks.text_tools import value_type
from azr_overrides.tasks.types import Candidate, Task, TaskKind
from azr_overrides.tasks.verification import with_imports
from verl_populora.files import write_atomically


def read_seeds(path: str | Path, kind: TaskKind, limit: int | None = None) -> list[Candidate]:
    """The first ``limit`` rows of a seed file as candidates of ``kind``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a line is not JSON or misses a field; the message names file, line and field.
    """
    path = Path(path)
    candidates: list[Candidate] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if limit is not None and len(candidates) >= limit:
                break
            if not line.strip():
                continue
            try:
                candidates.append(_candidate(json.loads(line), kind))
            except json.JSONDecodeError as error:
                fault = f"not JSON ({error.msg}, column {error.colno})"
                raise ValueError(f"{path}, line {number}: {fault}") from error
            except _BadRow as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
    if not candidates:
        raise ValueError(f"{path}: no seed tasks")
    return candidates


def write_seeds(path: str | Path, tasks: Iterable[Task]) -> None:
    """Write ``tasks`` in AZR's schema, atomically."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, "".join(json.dumps(seed_row(task)) + "\n" for task in tasks))


def seed_row(task: Task) -> dict[str, Any]:
    """One task as a row of a seed file."""
    if task.kind is TaskKind.CODE_F:
        return {
            "snippet": task.program,
            "inputs": list(task.inputs),
            "outputs": list(task.outputs),
            "message": task.message,
            "imports": list(task.imports),
            "_input_types": [value_type(text) for text in task.inputs],
            "_output_types": [value_type(text) for text in task.outputs],
        }
    return {
        "snippet": task.program,
        "input": task.inputs[0],
        "output": task.outputs[0],
        "imports": list(task.imports),
        "original_snippet": task.original_program or task.program,
        "composite_functions": list(task.composites),
        "_input_type": value_type(task.inputs[0]),
        "_output_type": value_type(task.outputs[0]),
    }


class _BadRow(ValueError):
    """What is wrong with one row."""


def _candidate(row: Any, kind: TaskKind) -> Candidate:
    if not isinstance(row, dict):
        raise _BadRow("expected a JSON object")
    program = _text(row, "snippet")
    imports = _texts(row, "imports", required=False)
    if kind is TaskKind.CODE_F:
        inputs, outputs = _texts(row, "inputs"), _texts(row, "outputs")
        if len(inputs) != len(outputs):
            raise _BadRow(f"{len(inputs)} inputs but {len(outputs)} outputs")
        if len(inputs) < 2:
            raise _BadRow("a code_f task needs 2 inputs: one to show and one to hide")
        message, original, composites = _text(row, "message"), "", ()
    else:
        inputs, message = (_text(row, "input"),), ""
        _text(row, "output")
        original = row.get("original_snippet", "")
        composites = _texts(row, "composite_functions", required=False)
    return Candidate(
        kind=kind,
        program=with_imports(imports, program),
        inputs=inputs,
        imports=imports,
        message=message,
        original_program=original if composites else "",
        composites=composites,
    )


def _text(row: dict, key: str) -> str:
    if key not in row:
        raise _BadRow(f"no field {key!r}; is this a seed file of another task kind?")
    if not isinstance(row[key], str):
        raise _BadRow(f"{key} is not a string")
    return row[key]


def _texts(row: dict, key: str, required: bool = True) -> tuple[str, ...]:
    if key not in row and not required:
        return ()
    if key not in row:
        raise _BadRow(f"no field {key!r}; is this a seed file of another task kind?")
    value = row[key]
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _BadRow(f"{key} is not a list of strings")
    return tuple(value)
