"""``python -m verl_populora.report RUN_DIR...``: a self-contained page and PNG files about runs."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_populora.report.data import load_run, unique_names
from verl_populora.report.page import Report, build_report, render_page
from verl_populora.report.png import write_pngs
from verl_populora.rundir import RunDirError


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    default = options.runs[0] / "report" if len(options.runs) == 1 else Path("report")
    try:
        page = write_report(options.runs, options.output or default, options.window, options.png)
    except (RunDirError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(page)
    return 0


def write_report(runs: Sequence[Path], output: Path, window: int = 10, png: bool = True) -> Path:
    """Write ``output/report.html`` and, with ``png``, one PNG a figure beside it; returns the page's path.

    Raises:
        RunDirError: one of ``runs`` is not a run directory or is damaged.
        ValueError: the same directory is given twice, or ``window`` is below 1.
    """
    report = load_report(runs, window)
    output.mkdir(parents=True, exist_ok=True)
    page = output / "report.html"
    page.write_text(render_page(report), encoding="utf-8")
    if png:
        write_pngs(report.figures, output)
    return page


def load_report(runs: Sequence[Path], window: int = 10) -> Report:
    if window < 1:
        raise ValueError(f"window must be at least 1 step, got {window}")
    names = unique_names(runs)
    return build_report([load_run(path, names[path]) for path in runs], window)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m verl_populora.report",
        description="Write a self-contained HTML page and PNG files about one run, or several side by side. "
        "Works while a run is still going.",
    )
    parser.add_argument("runs", metavar="RUN_DIR", nargs="+", type=Path, help="directory with metrics.jsonl")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help="folder to write to (default: RUN_DIR/report, or ./report for several)",
    )
    parser.add_argument(
        "--window",
        type=int,
        default=10,
        help="steps at the start and the end that are compared (default: 10)",
    )
    parser.add_argument("--no-png", dest="png", action="store_false", help="write the page only")
    return parser


if __name__ == "__main__":
    sys.exit(main())
