"""The table for a terminal, as Markdown, CSV and JSON, and as a plot. Shares become percent here and nowhere else."""

import csv
import io
from dataclasses import asdict
from pathlib import Path

from eval.data.registry import BENCHMARKS
from eval.stats import Difference, Interval
from eval.store import write_json
from eval.table import Comparison, Row, Table

NOT_RUN = "not run"
_LABEL_WIDTH, _COLUMN_WIDTH = 24, 14  # of the terminal's tables, which show as many rows side by side as fit
_MEANS = (
    ("Code", "code"),
    ("Math", "math"),
    ("Math+GSM8K", "math_with_gsm8k"),
    ("Overall", "overall"),
    ("Overall+GSM8K", "overall_with_gsm8k"),
)


def percent(value: float | None) -> str:
    return NOT_RUN if value is None else f"{100 * value:.1f}"


def _interval(cell: Interval | None) -> str:
    return NOT_RUN if cell is None else f"{100 * cell.value:.1f} [{100 * cell.low:.1f}, {100 * cell.high:.1f}]"


def _difference(difference: Difference) -> str:
    values = f"{100 * difference.value:+.1f} [{100 * difference.low:+.1f}, {100 * difference.high:+.1f}]"
    return values if difference.low <= 0 <= difference.high else f"{values} *"


def _shown(table: Table) -> list[str]:
    return [name for name in BENCHMARKS if any(name in row.cells for row in table.rows)]


def _size(table: Table, name: str) -> int:
    return max(row.counts.get(name, 0) for row in table.rows)


def _header(table: Table) -> list[str]:
    columns = [f"{BENCHMARKS[name].title} (n={_size(table, name)})" for name in _shown(table)]
    return ["", *columns, *(title for title, _ in _MEANS), f"Common mean ({len(table.common_benchmarks)})"]


def _cells(table: Table, row: Row) -> list[str]:
    cells = [_interval(row.cells.get(name)) for name in _shown(table)]
    return [
        row.label,
        *cells,
        *(percent(getattr(row, attribute)) for _, attribute in _MEANS),
        _interval(row.common),
    ]


def _comparison_cells(table: Table, comparison: Comparison) -> list[str]:
    return [
        f"{comparison.first} - {comparison.second}",
        *(_difference(comparison.by_benchmark[name]) for name in table.common_benchmarks),
        _difference(comparison.common),
        f"{comparison.common.positive:.3f}",
    ]


def _comparison_header(table: Table) -> list[str]:
    return [
        "Difference in points",
        *(BENCHMARKS[n].title for n in table.common_benchmarks),
        "Common mean",
        "P(> 0)",
    ]


def markdown(table: Table) -> str:
    """The whole result as one Markdown document."""
    lines = [
        "# Evaluation",
        "",
        *_markdown_table(_header(table), [_cells(table, row) for row in table.rows]),
        "",
    ]
    if table.comparisons:
        rows = [_comparison_cells(table, comparison) for comparison in table.comparisons]
        lines += ["## Paired differences", "", *_markdown_table(_comparison_header(table), rows), ""]
        lines += [
            "`*`: the 95% interval of the paired bootstrap leaves out zero; not corrected for the number of rows.",
            "",
        ]
    return "\n".join([*lines, *(f"- {note}" for note in table.notes)]) + "\n"


def _markdown_table(header: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return [line(header), line(["---", *["---:"] * (len(header) - 1)]), *(line(row) for row in rows)]


def csv_text(table: Table) -> str:
    """One line a row and benchmark, for other programs; shares in [0, 1]. What was not run has no line."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["evaluation", "row", "sort", "benchmark", "n", "accuracy", "low", "high"])
    for row in table.rows:
        for name, cell in row.cells.items():
            writer.writerow(
                [row.evaluation, row.label, row.sort, name, row.counts[name], cell.value, cell.low, cell.high]
            )
        for _, attribute in _MEANS:
            value = getattr(row, attribute)
            if value is not None:
                writer.writerow([row.evaluation, row.label, row.sort, f"mean:{attribute}", "", value, "", ""])
        if row.common:
            common = row.common
            writer.writerow(
                [
                    row.evaluation,
                    row.label,
                    row.sort,
                    "mean:common",
                    "",
                    common.value,
                    common.low,
                    common.high,
                ]
            )
    return stream.getvalue()


def as_json(table: Table) -> dict:
    rows = [asdict(row) | {attribute: getattr(row, attribute) for _, attribute in _MEANS} for row in table.rows]
    return {
        "rows": rows,
        "comparisons": [asdict(comparison) for comparison in table.comparisons],
        "common_benchmarks": table.common_benchmarks,
        "notes": table.notes,
    }


def print_table(table: Table) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console()
    per_block = max(1, (console.width - _LABEL_WIDTH) // _COLUMN_WIDTH)
    for start in range(0, len(table.rows), per_block):
        rows = table.rows[start : start + per_block]
        block = RichTable(title="Accuracy in percent" if start == 0 else None)
        block.add_column("", min_width=_LABEL_WIDTH - 4)
        for row in rows:
            block.add_column(row.label, justify="right", overflow="fold", width=_COLUMN_WIDTH - 3)
        for name in _shown(table):
            cells = [percent(cell.value if (cell := row.cells.get(name)) else None) for row in rows]
            block.add_row(f"{BENCHMARKS[name].title} ({_size(table, name)})", *cells)
        block.add_section()
        for title, attribute in _MEANS:
            block.add_row(title, *(percent(getattr(row, attribute)) for row in rows))
        common = [percent(row.common.value if row.common else None) for row in rows]
        block.add_row(f"Common mean ({len(table.common_benchmarks)})", *common)
        console.print(block)
    if table.comparisons:
        differences = RichTable(title="Paired differences of the common mean, in points")
        for title in ("", "Difference [95%]", "P(> 0)"):
            differences.add_column(title)
        for comparison in table.comparisons:
            name, *_, common, positive = _comparison_cells(table, comparison)
            differences.add_row(name, common, positive)
        console.print(differences)
    for note in table.notes:
        console.print(f"- {note}", highlight=False, markup=False)


def plot(table: Table, path: Path) -> None:
    """One panel a benchmark and one for the common mean: every row with its interval."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [
        (BENCHMARKS[name].title, {row.label: row.cells.get(name) for row in table.rows}) for name in _shown(table)
    ]
    if table.common_benchmarks:
        panels.append(("Common mean", {row.label: row.common for row in table.rows}))
    if not panels:
        return
    labels = [row.label for row in table.rows]
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    size = (2.6 * columns + 2.4, (0.24 * len(labels) + 0.9) * rows)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, sharey=True, squeeze=False, layout="constrained")
    colours = {"base": "#555555", "baseline": "#c44e52", "member": "#8da0cb"}
    for axis in axes.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (title, cells) in zip(axes.flat, panels, strict=False):
        for position, row in enumerate(table.rows):
            cell = cells[row.label]
            if cell is None:
                axis.text(0.02, position, NOT_RUN, va="center", fontsize=7, transform=axis.get_yaxis_transform())
                continue
            low, high = 100 * (cell.value - cell.low), 100 * (cell.high - cell.value)
            axis.errorbar(
                100 * cell.value, position, xerr=[[max(0, low)], [max(0, high)]], fmt="o", markersize=4,
                color=colours.get(row.sort, "#1b6ca8"), capsize=2,
            )  # fmt: skip
        axis.set_title(title, fontsize=9)
        axis.set_yticks(range(len(labels)), labels, fontsize=7)
        axis.tick_params(axis="x", labelsize=7)
        axis.set_ylim(len(labels) - 0.5, -0.5)
        axis.grid(axis="x", alpha=0.3)
    figure.supxlabel("accuracy, percent, with 95% intervals", fontsize=8)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def write_table(table: Table, directory: Path) -> list[Path]:
    """``table.md``, ``table.csv``, ``table.json`` and ``table.png``."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = [directory / f"table.{suffix}" for suffix in ("md", "csv", "json", "png")]
    paths[0].write_text(markdown(table))
    paths[1].write_text(csv_text(table))
    write_json(paths[2], as_json(table))
    plot(table, paths[3])
    return [path for path in paths if path.exists()]
