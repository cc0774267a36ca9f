"""One panel of a line figure as inline SVG: lines or a stack over steps, evolutions, a strip of matches."""

from collections.abc import Iterable, Sequence

from verl_populora.report.spec import (
    LineFigure,
    Outcome,
    Panel,
    Series,
    Style,
    Values,
    running_mean,
    value_range,
)
from verl_populora.report.svg import HEIGHT, LEFT, RIGHT, TOP, WIDTH, Frame, colour, number, wrap

LANE = 7  # height of one teacher's lane of matches


def draw_panel(figure: LineFigure, panel: Panel, identity: str) -> str:
    """One run's panel of a line figure, on the axes that all panels share."""
    strip = LANE * len(panel.lanes) + 6 if panel.lanes else 0
    frame = Frame(step_range(figure), padded(value_range(figure), figure.y_range))
    body = [frame.axes()]
    body += [
        f'<line class="event" x1="{frame.x(step)}" x2="{frame.x(step)}" y1="{TOP}" y2="{frame.bottom}"/>'
        for step in panel.events
    ]
    if figure.style is Style.STACK:
        body += _stack(frame, panel)
    else:
        body += [_band(frame, panel.steps, series) for series in panel.series if series.spread]
        for series in sorted(panel.series, key=lambda one: one.strong):
            body.append(_line(frame, panel.steps, series, figure.smooth))
    body += [_outcome(frame, outcome) for outcome in panel.outcomes]
    body.append(f'<line class="cursor" y1="{TOP}" y2="{frame.bottom + strip}" x1="-9" x2="-9"/>')
    first, last = frame.steps
    plot = f'data-first="{first}" data-last="{last}" data-left="{LEFT}" data-right="{WIDTH - RIGHT}"'
    return wrap(identity, figure.title, describe(figure, panel), HEIGHT + strip, "".join(body), f'tabindex="0" {plot}')


def describe(figure: LineFigure, panel: Panel) -> str:
    """The panel in words: first, last, lowest and highest value of each series."""
    lines = []
    for series in panel.series:
        present = [value for value in series.values if value is not None]
        if present:
            lines.append(
                f"{series.label}: first {number(present[0])}, last {number(present[-1])}, "
                f"lowest {number(min(present))}, highest {number(max(present))}."
            )
    return f"{panel.run}, {figure.unit}. " + " ".join(lines)


def step_range(figure: LineFigure) -> tuple[float, float]:
    """First and last step of all panels; a stack has room for the whole width of its outer steps."""
    steps = [step for panel in figure.panels for step in panel.steps]
    if not steps:
        return 0, 1
    margin = 0.5 if figure.style is Style.STACK else 0
    return min(steps) - margin, max(steps) + margin


def padded(values: tuple[float, float], fixed: tuple[float | None, float | None]) -> tuple[float, float]:
    """Room above and below what is not fixed."""
    low, high = values
    margin = (high - low) * 0.05
    return low if fixed[0] is not None else low - margin, high if fixed[1] is not None else high + margin


def _line(frame: Frame, steps: Sequence[int], series: Series, smooth: int) -> str:
    """The values and, for a strong series of a smoothed figure, their running mean on top."""
    if not (series.strong and smooth):
        return _polyline(frame, steps, series.values, series.colour, "strong" if series.strong else "thin")
    return _polyline(frame, steps, series.values, series.colour, "faint") + _polyline(
        frame, steps, running_mean(series.values, smooth), series.colour, "strong"
    )


def _polyline(frame: Frame, steps: Sequence[int], values: Values, name: str, kind: str) -> str:
    """A line, broken where a value is missing; a lone value is a dot."""
    parts = []
    for run in _runs(steps, values):
        if len(run) == 1:
            step, value = run[0]
            parts.append(f'<circle cx="{frame.x(step)}" cy="{frame.y(value)}" r="2.5" fill="{colour(name)}"/>')
        else:
            points = " ".join(f"{frame.x(step)},{frame.y(value)}" for step, value in run)
            parts.append(f'<polyline class="{kind}" stroke="{colour(name)}" points="{points}"/>')
    return "".join(parts)


def _band(frame: Frame, steps: Sequence[int], series: Series) -> str:
    present = [
        (step, value, half)
        for step, value, half in zip(steps, series.values, series.spread, strict=True)
        if value is not None and half is not None
    ]
    upper = [f"{frame.x(step)},{frame.y(value + half)}" for step, value, half in present]
    lower = [f"{frame.x(step)},{frame.y(value - half)}" for step, value, half in reversed(present)]
    return f'<polygon class="band" fill="{colour(series.colour)}" points="{" ".join(upper + lower)}"/>'


def _stack(frame: Frame, panel: Panel) -> list[str]:
    """One staircase area a series: every step is a column, whatever its neighbours are."""
    base = [0.0] * len(panel.steps)
    areas = []
    for series in panel.series:
        top = [below + (value or 0.0) for below, value in zip(base, series.values, strict=True)]
        outline = _staircase(frame, panel.steps, top) + _staircase(frame, panel.steps, base)[::-1]
        areas.append(f'<polygon class="area" fill="{colour(series.colour)}" points="{" ".join(outline)}"/>')
        base = top
    return areas


def _staircase(frame: Frame, steps: Sequence[int], values: Sequence[float]) -> list[str]:
    return [
        f"{frame.x(step + side)},{frame.y(value)}"
        for step, value in zip(steps, values, strict=True)
        for side in (-0.5, 0.5)
    ]


def _outcome(frame: Frame, outcome: Outcome) -> str:
    first, last = frame.steps
    width = max(1.0, min(6.0, (WIDTH - LEFT - RIGHT) / max(1.0, last - first) - 0.5))
    x, y = frame.x(outcome.step) - width / 2, HEIGHT + outcome.lane * LANE
    fill = colour(outcome.result)
    return f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{LANE - 1.5}" fill="{fill}"/>'


def _runs(steps: Sequence[int], values: Sequence[float | None]) -> Iterable[list[tuple[int, float]]]:
    """Unbroken stretches of measured values."""
    run: list[tuple[int, float]] = []
    for step, value in zip(steps, values, strict=True):
        if value is not None:
            run.append((step, value))
        elif run:
            yield run
            run = []
    if run:
        yield run
