"""What a person sees while a run goes on: a bar with the time left and one line for each step.

The driver reads the run directory, so it shows what was recorded and needs nothing from the training processes.
"""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from verl_populora.rundir import RunReader

_POLL_SECONDS = 0.5


@contextmanager
def follow(config: DictConfig, console: Console | None = None) -> Iterator[None]:
    """Show the run's progress until the block ends."""
    console = console or Console(stderr=True)
    total = int(config.trainer.total_training_steps or config.trainer.steps_per_epoch * config.trainer.total_epochs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    stop = threading.Event()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting Ray, verl and vLLM", total=total)
        watcher = threading.Thread(target=_watch, args=(config.run_dir, bar, task, stop), daemon=True)
        watcher.start()
        try:
            yield
        finally:
            stop.set()
            watcher.join()


def _watch(run_dir: str, bar: Progress, task: Any, stop: threading.Event) -> None:
    shown = 0
    while True:
        ended = stop.wait(_POLL_SECONDS)
        rows = RunReader(run_dir).metrics()
        if rows and rows[-1]["step"] != shown:
            for row in rows:
                if row["step"] > shown:
                    bar.console.print(summary_line(row), highlight=False, soft_wrap=True)
            shown = rows[-1]["step"]
            bar.update(task, completed=shown, description="training")
        if ended:
            return


def summary_line(metrics: Mapping[str, Any]) -> str:
    """One step in one line: validity, solve rate, rewards, complexity, coverage, seconds; a dash where missing."""
    parts = [
        f"step {metrics['step']:>4}",
        f"valid {_percent(metrics.get('tasks/valid_rate'))}",
        f"solved {_percent(metrics.get('tasks/solve_rate'))}",
        f"reward {_roles(metrics)}",
        f"depth {_number(metrics.get('complexity/ast_depth'))}",
        f"lines {_number(metrics.get('complexity/lines'))}",
        f"clusters {_number(metrics.get('coverage/total'), 0)}",
        f"{_number(metrics.get('time/step'))} s",
    ]
    warnings = [name.removeprefix("warn/") for name, value in metrics.items() if name.startswith("warn/") and value]
    return "  ".join(parts) + (f"  [warning: {', '.join(warnings)}]" if warnings else "")


def _roles(metrics: Mapping[str, Any]) -> str:
    if "role/teacher/reward" in metrics or "role/student/reward" in metrics:
        teacher, student = metrics.get("role/teacher/reward"), metrics.get("role/student/reward")
        return f"t {_number(teacher, 2)} s {_number(student, 2)}"
    return _number(metrics.get("member/agent1/reward"), 2)


def _percent(value: float | None) -> str:
    return "  -" if value is None else f"{100 * value:3.0f}%"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
