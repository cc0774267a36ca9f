"""The page: one HTML file that holds everything it needs."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from verl_populora.report.cost_table import MemberCost, member_costs, run_facts
from verl_populora.report.data import RunData
from verl_populora.report.figures import cost, curriculum, overview
from verl_populora.report.palette import css
from verl_populora.report.population import population
from verl_populora.report.samples import SampleGroup, choose_samples, code_html
from verl_populora.report.spec import Figure, LineFigure, MatrixFigure, as_json, has_data
from verl_populora.report.svg import number
from verl_populora.report.svg_lines import draw_panel
from verl_populora.report.svg_matrix import draw_matrix
from verl_populora.report.svg_tree import draw_tree
from verl_populora.report.verdict import Verdict, judge


@dataclass(frozen=True)
class Section:
    """A heading with its figures."""

    id: str
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class RunSummary:
    """A run's row on the first screen and its part of the tables."""

    run: RunData
    colour: str
    verdict: Verdict
    facts: tuple[tuple[str, str], ...]
    costs: tuple[MemberCost, ...]
    samples: tuple[SampleGroup, ...]


@dataclass(frozen=True)
class Report:
    """What both the page and the PNG files are made from."""

    summaries: tuple[RunSummary, ...]
    overview: tuple[LineFigure, ...]
    sections: tuple[Section, ...]

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (*self.overview, *(figure for section in self.sections for figure in section.figures))


def build_report(runs: Sequence[RunData], window: int = 10) -> Report:
    """Decide what to show. A figure that no run has data for stays, and says that nothing was measured."""
    summaries = tuple(
        RunSummary(
            run,
            f"run-{(position - 1) % 8 + 1}",
            judge(run, window),
            tuple(run_facts(run)),
            tuple(member_costs(run)),
            tuple(choose_samples(run.proposals)),
        )
        for position, run in enumerate(runs, start=1)
    )
    sections = [Section("curriculum", "Curriculum", tuple(curriculum(runs)))]
    if any(run.matches for run in runs):
        sections.append(Section("population", "Population", tuple(population(runs))))
    sections.append(Section("cost", "Time and compute", tuple(cost(runs))))
    return Report(summaries, tuple(overview(runs, window)), tuple(sections))


def render_page(report: Report) -> str:
    """The whole page as text. Everything that comes from a run is escaped."""
    environment = Environment(
        loader=PackageLoader("verl_populora.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"code": lambda program: Markup(code_html(program)), "number": number}
    environment.globals |= {"draw": draw, "legend": legend}
    environment.tests["has_data"] = has_data
    folder = files("verl_populora.report") / "templates"
    return environment.get_template("report.html.jinja").render(
        report=report,
        style=Markup((folder / "report.css").read_text(encoding="utf-8")),
        script=Markup((folder / "report.js").read_text(encoding="utf-8")),
        light=Markup(css("light")),
        dark=Markup(css("dark")),
        data=Markup(embedded_data(report)),
    )


def embedded_data(report: Report) -> str:
    """JSON of every figure, safe inside a script element."""
    data = {
        "runs": [summary.run.name for summary in report.summaries],
        "verdicts": [summary.verdict.status.value for summary in report.summaries],
        "figures": {figure.id: as_json(figure) for figure in report.figures},
    }
    return json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")


def draw(figure: Figure, position: int) -> Markup:
    """The drawing of the figure's panel number ``position``."""
    identity = f"{figure.id}-{position}"
    if isinstance(figure, LineFigure):
        return Markup(draw_panel(figure, figure.panels[position], identity))
    if isinstance(figure, MatrixFigure):
        return Markup(draw_matrix(figure, figure.panels[position], identity))
    return Markup(draw_tree(figure, figure.panels[position], identity))


def legend(figure: Figure, position: int) -> list[dict[str, Any]]:
    """Label, colour and last value of what a panel shows."""
    if isinstance(figure, LineFigure):
        return [
            {
                "label": series.label,
                "colour": series.colour,
                "last": _last(series.values),
                "strong": series.strong,
            }
            for series in figure.panels[position].series
        ]
    if isinstance(figure, MatrixFigure):
        return []
    shown = {life.operator for life in figure.panels[position].lives}
    return [
        {"label": "founder" if operator == "init" else operator, "colour": colour, "last": "", "strong": True}
        for operator, colour in figure.operators
        if operator in shown
    ]


def _last(values: Sequence[float | None]) -> str:
    present = [value for value in values if value is not None]
    return number(present[-1]) if present else ""
