"""``python -m verl_populora.watch RUN_DIR``: a run as a live view in the terminal."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from verl_populora.report.cost_table import duration
from verl_populora.report.data import RunData, load_run, seat_order
from verl_populora.report.verdict import Status, Verdict, judge
from verl_populora.rundir import Record, RunDirError

BLOCKS = "▁▂▃▄▅▆▇█"
STATUS_STYLE = {
    Status.GROWS: "bold green",
    Status.SIMPLIFIES: "bold yellow",
    Status.STALLS: "bold red",
    Status.COLLAPSES: "bold red",
}
RESULT_STYLE = {"win": "cyan", "loss": "yellow"}
CURVES = (
    ("solve rate", "tasks/solve_rate"),
    ("valid rate", "tasks/valid_rate"),
    ("AST depth", "complexity/ast_depth"),
    ("program lines", "complexity/lines"),
    ("structures, new", "coverage/new"),
    ("structures, total", "coverage/total"),
    ("teacher reward", "role/teacher/reward"),
    ("seconds a step", "time/step"),
)
COUNTS = ("/version", "coverage/new", "coverage/total")  # shown without decimals
MEMBER_COLUMNS = (
    ("mu", "member/{}/mu"),
    ("sigma", "member/{}/sigma"),
    ("fitness", "member/{}/fitness"),
    ("reward", "member/{}/reward"),
    ("solves", "student/{}/solve_rate"),
    ("valid", "teacher/{}/valid_rate"),
    ("entropy", "member/{}/entropy"),
    ("version", "member/{}/version"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        run = load_run(options.run, task_steps=1)
        if options.once:
            console.print(frame(run))
        else:
            _follow(options.run, run, options.interval, console)
    except RunDirError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass  # how one leaves a live view
    return 0


def frame(run: RunData) -> RenderableType:
    """One picture of the run: verdict, curves, members, last matches, warnings."""
    verdict = judge(run)
    parts: list[RenderableType] = [_headline(run, verdict)]
    if run.history:
        parts += [Columns([_curves(run), _members(run)], padding=(1, 4))]
    if run.matches:
        parts.append(_matches(run))
    parts += [Text(str(finding), style="red") for finding in verdict.findings]
    return Group(*parts)


def sparkline(values: Sequence[float | None], width: int = 32) -> str:
    """The last ``width`` values as blocks between their own lowest and highest; a gap for a missing one."""
    shown = values[-width:]
    present = [value for value in shown if value is not None]
    if not present:
        return ""
    low, high = min(present), max(present)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if value is None else BLOCKS[round((value - low) * scale)] for value in shown)


def _follow(path: Path, run: RunData, interval: float, console: Console) -> None:
    """Redraw until the run says that it has ended."""
    with Live(frame(run), console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while not run.info.get("exit_reason"):
            time.sleep(interval)
            run = load_run(path, task_steps=1)
            live.update(frame(run), refresh=True)


def _headline(run: RunData, verdict: Verdict) -> Text:
    total = (run.config.get("trainer") or {}).get("total_training_steps")
    text = Text(run.name, style="bold")
    text.append(f"  step {run.last_step}" + (f" of {total}" if total else ""), style="default")
    text.append(f"  {run.info.get('exit_reason') or 'in progress'}", style="dim")
    seconds = run.total("time/step")
    if seconds:
        text.append(f"  {duration(seconds)} in steps", style="dim")
    text.append(f"\n{verdict.status.value}", style=STATUS_STYLE.get(verdict.status, "bold"))
    text.append(f"  {verdict.sentence}", style="default")
    return text


def _curves(run: RunData) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right")
    table.add_column(style="cyan", no_wrap=True)
    for label, metric in CURVES:
        if run.has(metric):
            values = run.series(metric)
            table.add_row(label, _short(values[-1], metric), sparkline(values))
    return table


def _members(run: RunData) -> Table:
    seats = sorted({name.split("/")[1] for name in run.names("member/")}, key=seat_order)
    shown = [
        (label, pattern) for label, pattern in MEMBER_COLUMNS if any(run.has(pattern.format(seat)) for seat in seats)
    ]
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("member")
    for label, _ in shown:
        table.add_column(label, justify="right")
    names = {record["seat"]: record["name"] for record in run.lineage}  # the last born holds the seat
    last = run.history[-1]
    for seat in seats:
        cells = (_short(last.get(pattern.format(seat)), pattern) for _, pattern in shown)
        style = "yellow" if seat.startswith("teacher") else "cyan"
        table.add_row(Text(names.get(seat, seat), style=style), *cells)
    return table


def _matches(run: RunData) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", title="last matches", title_justify="left")
    for label in ("step", "teacher", "student", "expected", "solve rate", "valid", "student's result"):
        table.add_column(label)
    last_step = run.matches[-1]["step"]
    for match in run.matches:
        if match["step"] == last_step:
            table.add_row(*_match_cells(match))
    return table


def _match_cells(match: Record) -> tuple[RenderableType, ...]:
    result = Text(match["result"], style=RESULT_STYLE.get(match["result"], "dim"))
    valid = f"{match['valid']}/{match['tasks']}"
    return (
        str(match["step"]),
        match["teacher"],
        match["student"],
        _short(match["expected"]),
        _short(match["solve_rate"]),
        valid,
        result,
    )


def _short(value: float | None, metric: str = "") -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if metric.endswith(COUNTS) else f"{value:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.watch",
        description="Watch a training run in the terminal. Leave with Ctrl-C; the run goes on.",
    )
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="directory with metrics.jsonl")
    parser.add_argument("--interval", type=float, default=2.0, help="seconds between looks (default: 2)")
    parser.add_argument("--once", action="store_true", help="print the present state and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
