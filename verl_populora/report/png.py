"""The same figures as PNG files, for papers, slides and trackers."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure as Canvas

from verl_populora.report.palette import palette
from verl_populora.report.spec import (
    Figure,
    LineFigure,
    Matrix,
    MatrixFigure,
    Panel,
    Style,
    Tree,
    Values,
    has_data,
    running_mean,
    value_range,
)
from verl_populora.report.svg_lines import padded, step_range

COLOURS = palette("light")
MAX_COLUMNS = 4


def write_pngs(figures: Iterable[Figure], folder: Path) -> list[Path]:
    """One ``<figure id>.png`` for each figure that has data."""
    paths = []
    for figure in figures:
        if any(map(has_data, figure.panels)):
            paths.append(folder / f"{figure.id}.png")
            _canvas(figure).savefig(paths[-1], dpi=120)
    return paths


def _canvas(figure: Figure) -> Canvas:
    columns = min(MAX_COLUMNS, len(figure.panels))
    rows = -(-len(figure.panels) // columns)
    canvas = Canvas(figsize=(max(5.2, 4.2 * columns), 3.4 * rows), layout="constrained")
    FigureCanvasAgg(canvas)
    canvas.suptitle(f"{figure.title} ({figure.unit})", fontsize=11, x=0.01, ha="left")
    for position, panel in enumerate(figure.panels, start=1):
        axes = canvas.add_subplot(rows, columns, position)
        axes.tick_params(labelsize=8, length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        if len(figure.panels) > 1:
            axes.set_title(panel.run, fontsize=9, loc="left", color="#5d6069", parse_math=False)
        if not has_data(panel):
            axes.set_axis_off()
            axes.text(0, 0.9, "Not measured.", fontsize=8, color="#5d6069", transform=axes.transAxes)
        elif isinstance(panel, Panel) and isinstance(figure, LineFigure):
            _draw_lines(axes, figure, panel)
        elif isinstance(panel, Matrix) and isinstance(figure, MatrixFigure):
            _draw_matrix(axes, figure, panel)
        elif isinstance(panel, Tree):
            _draw_tree(axes, panel)
    return canvas


def _draw_lines(axes: Axes, figure: LineFigure, panel: Panel) -> None:
    axes.grid(axis="y", color="#efece5")
    axes.set_axisbelow(True)
    first, last = step_range(figure)
    axes.set_xlim(first, max(last, first + 1))
    axes.set_ylim(*padded(value_range(figure), figure.y_range))
    for step in panel.events:
        axes.axvline(step, color="#5d6069", linewidth=0.6, linestyle=":")
    if figure.style is Style.STACK:
        filled = [[value or 0.0 for value in series.values] for series in panel.series]
        if filled:
            axes.stackplot(
                panel.steps,
                filled,
                labels=[series.label for series in panel.series],
                colors=[COLOURS[series.colour] for series in panel.series],
                step="mid",
            )
    marker = "o" if len(panel.steps) == 1 else ""
    for series in panel.series if figure.style is Style.LINES else ():
        colour, values = COLOURS[series.colour], _plottable(series.values)
        width, alpha = (1.8, 1.0) if series.strong else (0.8, 0.65)
        if series.strong and figure.smooth:
            axes.plot(panel.steps, values, color=colour, linewidth=0.8, alpha=0.35)
            values = _plottable(running_mean(series.values, figure.smooth))
        axes.plot(panel.steps, values, label=series.label, color=colour, linewidth=width, alpha=alpha, marker=marker)
        if series.spread:
            half = _plottable(series.spread)
            axes.fill_between(panel.steps, values - half, values + half, color=colour, alpha=0.12, linewidth=0)
    if panel.series:
        axes.legend(fontsize=7, frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.1), borderaxespad=0)


def _draw_matrix(axes: Axes, figure: MatrixFigure, matrix: Matrix) -> None:
    colours = LinearSegmentedColormap.from_list("strength", ["#f2f6f8", COLOURS["student"]])
    numbers = [_plottable(row) for row in matrix.values]
    axes.imshow(numbers, cmap=colours, vmin=figure.low, vmax=figure.high, aspect="auto")
    axes.set_xticks(range(len(matrix.columns)), matrix.columns, rotation=45, ha="right")
    axes.set_yticks(range(len(matrix.rows)), matrix.rows)
    middle = (figure.low + figure.high) / 2
    for row, values in enumerate(matrix.values):
        for column, value in enumerate(values):
            if value is not None:
                ink = "white" if value > middle else "#1c1e22"
                axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=7, color=ink)


def _draw_tree(axes: Axes, tree: Tree) -> None:
    lanes = {life.name: life.lane for life in tree.lives}
    operators: dict[str, str] = {}
    for life in tree.lives:
        operators.setdefault(life.operator, life.colour)
        axes.barh(
            life.lane,
            life.died - life.born,
            left=life.born,
            height=0.4,
            color=COLOURS[life.colour],
            edgecolor="white",
        )
        for parent in life.parents:
            if parent in lanes:
                axes.plot([life.born, life.born], [lanes[parent], life.lane], color="#5d6069", linewidth=0.6)
    axes.set_yticks(range(len(tree.lanes)), tree.lanes)
    axes.set_ylim(max(len(tree.lanes), 6) - 0.5, -0.5)  # few lanes are not stretched
    for operator, colour in operators.items():
        axes.barh(0, 0, color=COLOURS[colour], label="founder" if operator == "init" else operator)
    if operators:
        axes.legend(fontsize=7, frameon=False, ncols=4, loc="upper left", bbox_to_anchor=(0, -0.1), borderaxespad=0)


def _plottable(values: Values) -> np.ndarray:
    """Missing values as NaN, which leave a gap."""
    return np.array([np.nan if value is None else value for value in values])
