"""A family tree as inline SVG."""

from html import escape

from verl_populora.report.spec import Tree, TreeFigure
from verl_populora.report.svg import BOTTOM, TOP, Frame, colour, label, wrap


def draw_tree(figure: TreeFigure, tree: Tree, identity: str) -> str:
    """Lives as bars in the lanes of their seats; a curve from each parent to the birth of its child."""
    lane_height = 20
    height = TOP + lane_height * len(tree.lanes) + BOTTOM
    frame = Frame((0, max(1, tree.last_step)), (0, 1), height, left=66)
    body = [frame.step_axis()]

    def middle(lane: int) -> float:
        return TOP + (lane + 0.5) * lane_height

    lane_of = {life.name: life.lane for life in tree.lives}
    for lane, seat in enumerate(tree.lanes):
        body.append(label(58, middle(lane) + 3.5, seat, "end"))
    for life in tree.lives:
        y, start, end = middle(life.lane), frame.x(life.born), frame.x(life.died)
        for parent in life.parents:
            if parent in lane_of and lane_of[parent] != life.lane:
                bend, source = start - 10, middle(lane_of[parent])
                body.append(f'<path class="birth" d="M{bend - 4} {source}C{start} {source} {bend} {y} {start} {y}"/>')
        title = escape(f"{life.name}: {life.operator}, steps {life.born} to {life.died}")
        body.append(
            f'<rect x="{start + 1}" y="{y - 4}" width="{max(2.0, end - start - 2):.1f}" height="8" rx="2" '
            f'fill="{colour(life.colour)}"><title>{title}</title></rect>'
        )
    births = sum(bool(life.parents) for life in tree.lives)
    described = f"{figure.title}, {tree.run}: {len(tree.lanes)} seats, {births} births."
    return wrap(identity, figure.title, described, height, "".join(body))
