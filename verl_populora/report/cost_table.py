"""What a run took: facts of the run as a whole and compute by member seat."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_populora.report.data import RunData, seat_of, seat_order
from verl_populora.rundir import RunReader

# Label and path of each fact in run.json.
_INFO = (
    ("compute budget", "population", "budget"),
    ("base model", "base_model"),
    ("seed", "seed"),
    ("sandbox isolation", "sandbox", "level"),
    ("started", "started"),
    ("ended", "ended"),
)


@dataclass(frozen=True, slots=True)
class MemberCost:
    """Totals of one seat over the run."""

    seat: str
    samples: float  # it was trained on
    tokens: float  # response tokens of them
    share: float  # of the run's tokens, in [0, 1]
    updates: float | None  # steps with samples, less the skipped ones; None where skipped ones were not recorded


def member_costs(run: RunData) -> Iterator[MemberCost]:
    seats = sorted({name.split("/")[1] for name in run.names("member/")}, key=seat_order)
    everything = sum(run.total(f"member/{seat}/tokens") for seat in seats)
    for seat in seats:
        tokens = run.total(f"member/{seat}/tokens")
        yield MemberCost(
            seat,
            run.total(f"member/{seat}/samples"),
            tokens,
            tokens / everything if everything else 0.0,
            _updates(run, seat),
        )


@dataclass(slots=True)
class Generated:
    """What one seat wrote, trained on or not."""

    samples: int = 0  # proposals and attempts
    tokens: int = 0  # response tokens of them


def generated_by_seat(reader: RunReader) -> dict[str, Generated]:
    """Totals over all recorded proposals and attempts of a run; a seat that wrote nothing is absent."""
    written: defaultdict[str, Generated] = defaultdict(Generated)

    def count(member: str, tokens: int) -> None:
        one = written[seat_of(member)]
        one.samples += 1
        one.tokens += tokens

    for step in reader.task_steps():
        for record in reader.tasks(step):
            if record["teacher"] is not None:
                count(record["teacher"], record["response_tokens"])
            for attempt in record["attempts"]:
                count(attempt["student"], attempt["response_tokens"])
    return dict(written)


def run_facts(run: RunData) -> Iterator[tuple[str, str]]:
    """Label and text of each fact that the run directory holds."""
    yield "steps", str(run.last_step)
    state = run.info.get("exit_reason")
    yield "state", str(state) if state else "in progress"
    seconds = run.total("time/step")
    if seconds:
        yield "time in steps", duration(seconds)
    for label, metric in (("valid tasks", "tasks/valid"), ("attempts", "tasks/attempts")):
        if run.has(metric):
            yield label, f"{run.total(metric):,.0f}"
    if run.lineage:
        yield "births", str(sum(record["birth_step"] > 0 for record in run.lineage))
    lost = sum(run.total(name) for name in run.names("drops/"))
    if lost:
        yield "rows lost", f"{lost:,.0f}"
    warnings = {name.removeprefix("warn/"): run.total(name) for name in run.names("warn/")}
    for name, count in warnings.items():
        if count:
            yield f"warning {name}", f"at {count:.0f} steps"
    yield from _heldout_facts(run)
    for label, *keys in _INFO:
        value: Any = run.info
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            yield label, str(value)
    if run.info.get("versions"):
        yield "versions", ", ".join(f"{name} {version}" for name, version in run.info["versions"].items())


def _heldout_facts(run: RunData) -> Iterator[tuple[str, str]]:
    """Held-out accuracy by decoding, where it was measured."""
    if not run.heldout:
        return
    for decoding, before in run.heldout["before"]["accuracy"].items():
        after = {member["name"]: member["accuracy"][decoding]["all"] for member in run.heldout["after"]}
        text = f"before {before['all']:.1%}, after {sum(after.values()) / len(after):.1%}"
        if len(after) > 1:
            best, weakest = max(after, key=after.__getitem__), min(after, key=after.__getitem__)
            text += f" on average, best {after[best]:.1%} ({best}), weakest {after[weakest]:.1%} ({weakest})"
        yield f"held-out accuracy, {decoding}", text


def duration(seconds: float) -> str:
    """``1 h 05 min``, ``4 min 10 s`` or ``12.3 s``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def _updates(run: RunData, seat: str) -> float | None:
    if not run.has(f"member/{seat}/skipped_updates"):
        return None
    trained = sum(bool(value) for value in run.series(f"member/{seat}/samples"))
    return trained - run.total(f"member/{seat}/skipped_updates")
