"""A matrix as inline SVG."""

from html import escape

from verl_populora.report.spec import Matrix, MatrixFigure
from verl_populora.report.svg import WIDTH, label, wrap

NARROW = 26  # a cell that is narrower has no room for its number, which is then in its tooltip only


def draw_matrix(figure: MatrixFigure, matrix: Matrix, identity: str) -> str:
    """A table of coloured cells, rows labelled on the left, columns above."""
    left, top, right = 66, 26, 4
    cell = min(56.0, (WIDTH - left - right) / max(1, len(matrix.columns)))
    row_height = min(cell, 40.0)
    body = []
    for column, name in enumerate(matrix.columns):
        x = left + (column + 0.5) * cell
        body.append(label(x, top - 8, name if cell > 50 else short(name), "middle"))
    for row, name in enumerate(matrix.rows):
        y = top + row * row_height
        middle = y + row_height / 2
        body.append(label(left - 8, middle + 3.5, name, "end"))
        for column, value in enumerate(matrix.values[row]):
            note = matrix.notes[row][column] if matrix.notes else ""
            body.append(_cell(figure, left + column * cell, y, cell, row_height, value, note))
    height = top + row_height * len(matrix.rows) + 8
    described = f"{figure.title}, {matrix.run}: {len(matrix.rows)} rows, {len(matrix.columns)} columns."
    return wrap(identity, figure.title, described, round(height), "".join(body))


def short(seat: str) -> str:
    """``teacher12`` -> ``t12``."""
    return seat[0] + seat.lstrip("abcdefghijklmnopqrstuvwxyz")


def _cell(figure: MatrixFigure, x: float, y: float, width: float, height: float, value: float | None, note: str) -> str:
    share = 0.0 if value is None else (value - figure.low) / (figure.high - figure.low)
    strength = round(8 + 84 * min(1.0, max(0.0, share)))
    centre, middle = x + width / 2, y + height / 2
    text = "–" if value is None else f"{value:.2f}"
    baseline = middle - 2 if note else middle + 3.5
    ink = "cell-on" if strength > 64 else "cell-off"
    below = f'<text class="note {ink}" x="{centre:.1f}" y="{middle + 10:.1f}">{escape(note)}</text>' if note else ""
    texts = f'<text class="value {ink}" x="{centre:.1f}" y="{baseline:.1f}">{text}</text>{below}'
    return (
        f'<rect class="cell" style="--strength: {strength}%" rx="2" x="{x + 1:.1f}" y="{y + 1:.1f}" '
        f'width="{width - 2:.1f}" height="{height - 2:.1f}"><title>{text} {escape(note)}</title></rect>'
        f"{texts if width >= NARROW else ''}"
    )
