"""What all drawings share: the frame with its axes, round ticks, short numbers, the accessible wrapper.

A drawing is 360 units wide and is shown at about that many pixels, so that its text has the size of the
page's text on a phone and on a desktop. Legends are HTML below the drawing: text inside one is short.
"""

import math
from html import escape

WIDTH, HEIGHT = 360, 190
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 8, 24


class Frame:
    """Maps steps and values to the drawing, and draws the axes."""

    def __init__(
        self, steps: tuple[float, float], values: tuple[float, float], height: int = HEIGHT, left: int = LEFT
    ) -> None:
        self.steps, self.values, self.height, self.left = steps, values, height, left
        self.bottom = height - BOTTOM

    def x(self, step: float) -> float:
        first, last = self.steps
        share = (step - first) / (last - first) if last > first else 0.5
        return round(self.left + share * (WIDTH - self.left - RIGHT), 1)

    def y(self, value: float) -> float:
        low, high = self.values
        share = (min(max(value, low), high) - low) / (high - low)
        return round(self.bottom - share * (self.bottom - TOP), 1)

    def axes(self) -> str:
        parts = []
        for tick in ticks(*self.values, count=4):
            y = self.y(tick)
            parts.append(f'<line class="grid" x1="{self.left}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}"/>')
            parts.append(label(self.left - 6, y + 3.5, number(tick), "end"))
        return "".join(parts) + self.step_axis()

    def step_axis(self) -> str:
        first, last = self.steps
        marks = [tick for tick in ticks(first, last, count=5) if tick == int(tick)] or [first]
        return "".join(label(self.x(tick), self.height - 7, number(tick), "middle") for tick in marks)


def label(x: float, y: float, text: str, anchor: str) -> str:
    """Small text; ``anchor`` is start, middle or end."""
    return f'<text class="tick" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def wrap(identity: str, title: str, description: str, height: int, body: str, attributes: str = "") -> str:
    """An SVG that a screen reader can announce."""
    labelled = f'role="img" aria-labelledby="{identity}-t {identity}-d"'
    return (
        f'<svg id="{identity}" viewBox="0 0 {WIDTH} {height}" {labelled} {attributes}>'
        f'<title id="{identity}-t">{escape(title)}</title>'
        f'<desc id="{identity}-d">{escape(description)}</desc>{body}</svg>'
    )


def ticks(low: float, high: float, count: int) -> list[float]:
    """About ``count`` round numbers in [low, high]: multiples of 1, 2 or 5 times a power of ten."""
    raw = max(high - low, 1e-12) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    start = math.ceil(low / step - 1e-9)
    stop = math.floor(high / step + 1e-9)
    return [round(index * step, 10) + 0.0 for index in range(start, stop + 1)]


def number(value: float) -> str:
    """Short and exact enough for a label: ``0.25``, ``17``, ``12k``."""
    if abs(value) >= 10_000:
        return f"{value / 1000:.0f}k" if abs(value) < 10_000_000 else f"{value / 1_000_000:.0f}M"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def colour(name: str) -> str:
    return f"var(--c-{name})"
