"""What a record of the run directory says of a task (docs/run-directory.md)."""

from dataclasses import asdict
from typing import Any

from azr_overrides.tasks.complexity import complexity
from azr_overrides.tasks.types import Task


def task_fields(task: Task | None) -> dict[str, Any]:
    """The fields of a task and its program's complexity; the same fields, empty, where there is no task."""
    return {
        "task_id": task.task_id if task else None,
        "program": task.program if task else "",
        "inputs": list(task.inputs) if task else [],
        "outputs": list(task.outputs) if task else [],
        "imports": list(task.imports) if task else [],
        "original_program": task.original_program if task else "",
        "composites": list(task.composites) if task else [],
        "message": task.message if task else "",
        "complexity": asdict(complexity(task.program)) if task else None,
    }
