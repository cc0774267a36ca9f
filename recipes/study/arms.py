"""What a study compares: arms are overrides of one training command, sizes its length."""

from dataclasses import dataclass

from verl_populora.evolution.config import EvolutionConfig

BASELINE = "single"
ABLATED = "4t4s"  # the population that ablations change in one point


@dataclass(frozen=True, slots=True)
class Size:
    """How long a study is, and how fast it learns: a short one has to move in few steps.

    The last evolution falls before the last step, so that no child is graded untrained.
    """

    steps: int
    learning_rate: float
    seeds: int
    evolution_interval: int  # steps
    arms: tuple[str, ...]


SIZES = {
    "smoke": Size(steps=4, learning_rate=5e-3, seeds=2, evolution_interval=3, arms=("single", "1t1s", "4t4s")),
    "short": Size(steps=25, learning_rate=5e-3, seeds=3, evolution_interval=7, arms=("single", "1t1s", "4t4s")),
    "overnight": Size(
        steps=155, learning_rate=1e-3, seeds=3, evolution_interval=10, arms=("single", "1t1s", "2t2s", "4t4s")
    ),
}


def _only(operator: str) -> tuple[str, ...]:
    """The ablated population with one variation operator."""
    config = EvolutionConfig()
    group, rate = ("mutations", 0.0) if operator in config.mutations else ("crossovers", 1.0)
    others = [name for name in getattr(config, group) if name != operator]
    return (
        f"population={ABLATED}",
        f"population.evolution.crossover_rate={rate}",
        *(f"~population.evolution.{group}.{name}" for name in others),
    )


OPERATORS = (*EvolutionConfig().mutations, *EvolutionConfig().crossovers)
ABLATIONS = {
    f"{ABLATED}-no-evolution": (f"population={ABLATED}", "population.evolution.enabled=false"),
    f"{ABLATED}-uniform": (f"population={ABLATED}", "population.matchmaking.name=uniform"),
    # A control: the curriculum stays the base's own.
    f"{ABLATED}-frozen-teachers": (f"population={ABLATED}", "population.learning_rates.teacher=0"),
    **{f"{ABLATED}-only-{name}": _only(name) for name in OPERATORS},
}
ARMS = {
    **{name: (f"population={name}",) for name in (BASELINE, "1t1s", "2t2s", "4t4s", "8t8s")},
    **ABLATIONS,
}


def choose_arms(text: str) -> tuple[str, ...]:
    """Arms named by a list separated by spaces or commas; ``ablations`` stands for all of them.

    Raises:
        ValueError: a name is unknown or the list is empty.
    """
    chosen: list[str] = []
    for name in text.replace(",", " ").split():
        if name != "ablations" and name not in ARMS:
            raise ValueError(f"there is no arm {name!r}; choose from {', '.join(ARMS)}, or ablations for all of those")
        chosen += [one for one in (ABLATIONS if name == "ablations" else (name,)) if one not in chosen]
    if not chosen:
        raise ValueError(f"no arm is named; choose from {', '.join(ARMS)}")
    return tuple(chosen)
