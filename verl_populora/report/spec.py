"""What a figure shows, apart from how it is drawn: the page, its embedded data and the PNG files share it.

Colours are names (``teacher``, ``student-3``, ``run-2``, ``part-4``); ``palette.py`` gives them values for a
light and a dark page.
"""

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

Values = tuple[float | None, ...]


class Style(StrEnum):
    """How the series of a line figure relate to each other."""

    LINES = "lines"  # side by side
    STACK = "stack"  # parts of a whole, drawn on top of each other


@dataclass(frozen=True, slots=True)
class Series:
    """One value a step; None where it was not measured."""

    label: str
    colour: str
    values: Values
    metric: str = ""  # name in metrics.jsonl; "" for a value derived from several
    strong: bool = False  # drawn as the main line
    spread: Values = ()  # half width of a band around ``values``, or nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """One match in the strip below a panel."""

    step: int
    lane: int  # 0-based, one lane a teacher
    result: str  # win, draw, loss, void: from the student's side


@dataclass(frozen=True, slots=True)
class Panel:
    """One run's part of a line figure."""

    run: str
    steps: tuple[int, ...]
    series: tuple[Series, ...]
    events: tuple[int, ...] = ()  # steps of evolutions, drawn as vertical lines
    outcomes: tuple[Outcome, ...] = ()
    lanes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LineFigure:
    """The same quantities over steps for every run, on the same axes."""

    id: str
    title: str
    question: str  # what the reader looks for
    unit: str
    panels: tuple[Panel, ...]
    style: Style = Style.LINES
    y_range: tuple[float | None, float | None] = (None, None)  # None: from the data of all panels
    smooth: int = 0  # strong lines are running means over this many steps, drawn over the values; 0: the values


@dataclass(frozen=True, slots=True)
class Matrix:
    """One run's table of numbers by row and column; None where there is none."""

    run: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[Values, ...]
    notes: tuple[tuple[str, ...], ...] = ()  # small text below each value


@dataclass(frozen=True, slots=True)
class MatrixFigure:
    """A coloured table; the colour runs from ``low`` to ``high``."""

    id: str
    title: str
    question: str
    unit: str
    panels: tuple[Matrix, ...]
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Life:
    """One member from its birth to its replacement."""

    name: str
    lane: int
    born: int
    died: int  # last step of the run for a living member
    operator: str
    colour: str
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """One run's family tree: a lane a seat, time to the right."""

    run: str
    lanes: tuple[str, ...]
    lives: tuple[Life, ...]
    last_step: int


@dataclass(frozen=True, slots=True)
class TreeFigure:
    id: str
    title: str
    question: str
    unit: str
    panels: tuple[Tree, ...]
    operators: tuple[tuple[str, str], ...]  # (operator, colour), the legend


Figure = LineFigure | MatrixFigure | TreeFigure


def as_json(figure: Figure) -> dict[str, Any]:
    """The figure's data as plain containers, with its class name as ``type``."""
    return {"type": type(figure).__name__, **asdict(figure)}


def running_mean(values: Values, width: int) -> Values:
    """Centred mean of the values within ``width // 2`` steps, from the first value to the last.

    Where a value is missing it is that of its neighbours; None outside, and where there is none near.
    """
    half = width // 2
    known = [index for index, value in enumerate(values) if value is not None]
    means: list[float | None] = []
    for index in range(len(values)):
        near = [other for other in values[max(0, index - half) : index + half + 1] if other is not None]
        means.append(sum(near) / len(near) if near and known[0] <= index <= known[-1] else None)
    return tuple(means)


def value_range(figure: LineFigure) -> tuple[float, float]:
    """Lowest and highest value that the figure has to show over all panels, never empty."""
    tops: list[float] = []
    for panel in figure.panels:
        if figure.style is Style.STACK:
            stacked = zip(*(series.values for series in panel.series), strict=True)
            tops += [sum(value or 0.0 for value in step) for step in stacked] + [0.0]
        else:
            for series in panel.series:
                spread = series.spread or (0.0,) * len(series.values)
                for value, half in zip(series.values, spread, strict=True):
                    if value is not None:
                        tops += [value - (half or 0.0), value + (half or 0.0)]
    low = min(tops, default=0.0) if figure.y_range[0] is None else figure.y_range[0]
    high = max(tops, default=1.0) if figure.y_range[1] is None else figure.y_range[1]
    if high <= low:
        high = low + max(1.0, abs(low) / 10)
    return low, high


def has_data(panel: Panel | Matrix | Tree) -> bool:
    """Whether a panel has anything to show."""
    if isinstance(panel, Panel):
        return any(value is not None for series in panel.series for value in series.values)
    return bool(panel.rows if isinstance(panel, Matrix) else panel.lives)
