"""python -m recipes.study.summary OUT: means over seeds with 95% intervals, as Markdown, of all runs of a study.

Writes ``OUT/summary.md`` and ``OUT/summary.json``. Runs in progress are left out.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from recipes.study.arms import ARMS, BASELINE
from recipes.study.measures import CURRICULUM, DECODINGS, HeldOut, Measures, read_measures
from recipes.study.stats import Estimate, difference, mean
from verl_populora.files import write_atomically
from verl_populora.report.cost_table import duration
from verl_populora.rundir import HELDOUT, RunDirError

RUN_NAME = re.compile(r"(?P<arm>.+)-seed(?P<seed>\d+)")
NOT_MEASURED = "–"

Study = Mapping[str, Mapping[int, Measures]]
"""By arm, by seed."""

_SHARES = {"solve rate of proposed tasks", "share of tasks solved sometimes", "share of tasks never solved"}
_SHARES |= {"valid proposals", "distinct structures among valid"}

_HELDOUT_ROWS: dict[str, Callable[[HeldOut], float | None]] = {
    "mean of all members": lambda one: one.mean,
    "best member": lambda one: one.best,
    "weakest member": lambda one: one.weakest,
    "mean of students": lambda one: one.students,
    "mean of teachers": lambda one: one.teachers,
}


def run_folder(out: Path, arm: str, seed: int) -> Path:
    return out / f"{arm}-seed{seed}"


def read_study(out: Path) -> Study:
    """Measures of all runs that are finished and graded.

    Raises:
        RunDirError: there is none, or one is damaged.
    """
    found: dict[str, dict[int, Measures]] = {}
    for path in sorted(out.glob(f"*-seed*/{HELDOUT}")):
        match = RUN_NAME.fullmatch(path.parent.name)
        if match and match["arm"] in ARMS:
            found.setdefault(match["arm"], {})[int(match["seed"])] = read_measures(path.parent)
    if not found:
        raise RunDirError(f"{out} holds no finished run of a study (<arm>-seed<number>/{HELDOUT})")
    return {arm: dict(sorted(found[arm].items())) for arm in ARMS if arm in found}


def render(study: Study) -> str:
    """All tables."""
    arms = list(study)
    budgets = sorted({run.budget for runs in study.values() for run in runs.values()})
    seeds = ", ".join(f"{arm} {len(runs)}" for arm, runs in study.items())
    parts = [
        "# Study on the tiny base",
        f"Compute budget: {', '.join(f'`{budget}`' for budget in budgets)}. Seeds: {seeds}. Values are means over "
        "seeds; ± and brackets are 95% intervals of Student's t over seeds (differences: Welch's). They hold for this "
        "base, these settings and these held-out tasks only, and with few seeds they are wide; no correction for the "
        "number of comparisons is made.",
        "## Compute",
        _compute(study, arms),
        "## Curriculum, first → last quarter of the steps",
        "In parentheses the change inside a run, **bold** where its interval leaves out zero.",
        _courses(study, arms),
    ]
    for decoding, title in zip(DECODINGS, ("greedy (pass@1)", "temperature 1 (mean of samples)"), strict=True):
        parts += [f"## Held-out accuracy, {title}", *_held_out(study, arms, decoding)]
    if BASELINE in study and len(arms) > 1:
        parts += [
            f"## Differences from `{BASELINE}`",
            "Curriculum: difference of the changes (last minus first quarter). Held-out: difference after training, of "
            f"each arm's row to the one member of `{BASELINE}`. **Bold** where the interval leaves out zero.",
            _differences(study, [arm for arm in arms if arm != BASELINE]),
        ]
    parts.append(
        "Best and weakest members are chosen on the held-out tasks themselves, so best is biased upwards and weakest "
        "downwards, the more the larger a population is. Before its first update every member equals the base."
    )
    return "\n\n".join(parts) + "\n"


def _compute(study: Study, arms: Sequence[str]) -> str:
    header = ["arm", "adapters", "steps", "samples", "tokens generated", "tokens trained", "trained by adapter"]
    header += ["updates by adapter", "time in steps", "time against single"]
    baseline = _values(study, BASELINE, lambda run: run.cost.seconds)
    rows = []
    for arm in arms:
        costs = [run.cost for run in study[arm].values()]
        seconds = mean([cost.seconds for cost in costs]).value
        rows.append(
            [
                arm,
                str(costs[0].adapters),
                f"{mean([cost.steps for cost in costs]).value:,.0f}",
                *(
                    f"{mean([value(cost) for cost in costs]).value:,.0f}"
                    for value in (
                        lambda cost: cost.samples,
                        lambda cost: cost.generated,
                        lambda cost: cost.trained,
                        lambda cost: cost.trained / cost.adapters,
                        lambda cost: cost.updates,
                    )
                ),
                duration(seconds),
                f"{seconds / mean(baseline).value:.2f}" if baseline else NOT_MEASURED,
            ]
        )
    return _table(header, rows)


def _courses(study: Study, arms: Sequence[str]) -> str:
    rows = []
    for label in CURRICULUM:
        cells = [label]
        for arm in arms:
            courses = [run.curriculum[label] for run in study[arm].values() if label in run.curriculum]
            if not courses:
                cells.append(NOT_MEASURED)
                continue
            first, last = mean([c.first for c in courses]).value, mean([c.last for c in courses]).value
            change = mean([c.change for c in courses])
            share = label in _SHARES
            cells.append(f"{_number(first, share)} → {_number(last, share)} ({_signed(change, share)})")
        rows.append(cells)
    return _table(["", *arms], rows)


def _held_out(study: Study, arms: Sequence[str], decoding: str) -> list[str]:
    bases = {run.heldout[decoding].base for runs in study.values() for run in runs.values()}
    base = ", ".join(f"{value:.1%}" for value in sorted(bases))
    rows = []
    for label, value in _HELDOUT_ROWS.items():
        cells = [label]
        for arm in arms:
            runs = [run.heldout[decoding] for run in study[arm].values()]
            after = _present(value(run) for run in runs)
            if not after:
                cells.append(NOT_MEASURED)
                continue
            gain = mean([score - run.base for run in runs if (score := value(run)) is not None])
            cells.append(f"{mean(after).value:.1%} ({_signed(gain, True)})")
        rows.append(cells)
    return [
        f"Base, and every member before training: {base}. In parentheses the gain over it.",
        _table(["after training", *arms], rows),
    ]


def _differences(study: Study, arms: Sequence[str]) -> str:
    rows = []

    def add(label: str, value: Callable[[Measures], float | None], share: bool, baseline=None) -> None:
        reference = _values(study, BASELINE, baseline or value)
        cells = [label]
        for arm in arms:
            own = _values(study, arm, value)
            estimate = difference(own, reference) if own and reference else None
            cells.append(NOT_MEASURED if estimate is None else _bracketed(estimate, share))
        rows.append(cells)

    for name in CURRICULUM:
        add(
            f"change of {name}",
            lambda run, name=name: run.curriculum[name].change if name in run.curriculum else None,
            name in _SHARES,
        )
    for decoding in DECODINGS:
        for row, value in _HELDOUT_ROWS.items():
            add(
                f"held-out {decoding}, {row}",
                lambda run, value=value, decoding=decoding: value(run.heldout[decoding]),
                True,
                lambda run, decoding=decoding: run.heldout[decoding].mean,
            )
    return _table(["", *arms], rows)


def _values(study: Study, arm: str, value: Callable[[Measures], float | None]) -> list[float]:
    return _present(value(run) for run in study.get(arm, {}).values())


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _number(value: float, share: bool) -> str:
    return f"{100 * value:.1f}%" if share else f"{value:.2f}"


def _signed(estimate: Estimate, share: bool) -> str:
    """``+1.2 ± 0.8``; percentage points for shares."""
    scale, digits = (100, 1) if share else (1, 2)
    text = f"{scale * estimate.value:+.{digits}f}"
    if estimate.half is not None:
        text += f" ± {scale * estimate.half:.{digits}f}"
    return f"**{text}**" if estimate.excludes_zero else text


def _bracketed(estimate: Estimate, share: bool) -> str:
    """``+1.2 [+0.4, +2.0]``; percentage points for shares."""
    scale, digits = (100, 1) if share else (1, 2)
    text = f"{scale * estimate.value:+.{digits}f}"
    if estimate.half is not None:
        low, high = (scale * (estimate.value + side * estimate.half) for side in (-1, 1))
        text += f" [{low:+.{digits}f}, {high:+.{digits}f}]"
    return f"**{text}**" if estimate.excludes_zero else text


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (header, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])


def write_summary(out: Path) -> Path:
    """Write both files; returns the Markdown one.

    Raises:
        RunDirError: the study has no finished run.
    """
    study = read_study(out)
    record = {arm: {str(seed): asdict(run) for seed, run in runs.items()} for arm, runs in study.items()}
    write_atomically(out / "summary.json", json.dumps(record, indent=1) + "\n")
    path = out / "summary.md"
    write_atomically(path, render(study))
    return path


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", metavar="OUT", type=Path, help="directory of the study")
    arguments = parser.parse_args(argv)
    try:
        print(write_summary(arguments.out))
    except (RunDirError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
