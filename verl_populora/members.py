"""Members of a population and where they come from. Immutable: a change is a new record."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Role(StrEnum):
    TEACHER = "teacher"  # proposes tasks
    STUDENT = "student"  # solves them
    AGENT = "agent"  # the single-agent baseline: one adapter that does both


@dataclass(frozen=True, slots=True)
class Lineage:
    """How a member came to be; enough to recompute its weights bit for bit from its parents' checkpoints."""

    operator: str = "init"  # registry name of the variation operator, "init" for a founder
    parents: tuple[str, ...] = ()  # member names; empty for founders
    parent_versions: tuple[int, ...] = ()  # adapter version of each parent when it was used
    params: Mapping[str, Any] = field(default_factory=dict)  # the operator's parameters
    seed: int = 0  # seed of the operator's own random stream


GUEST = "guest"  # the seat of a past student, which is served but never trained


@dataclass(frozen=True, slots=True)
class Guest:
    """A past member that living ones meet for a step; its weights and its rating stay as they were."""

    name: str  # the name it had in the population
    adapter_id: int
    version: int  # of its seat: the step after which it was seated
    rating: tuple[float, float]  # (mu, sigma) when it was replaced

    @property
    def seat(self) -> str:
        return GUEST


@dataclass(frozen=True, slots=True)
class Member:
    """One adapter of the population.

    ``seat`` is the place in the population ("teacher1"): it keeps its adapter id, its series in the metrics and its
    slot in the rollout engine while members come and go. ``name`` is unique over a run ("teacher1-g2").
    """

    seat: str
    role: Role
    adapter_id: int  # 1-based id in the rollout engine and the trainer; never 0, never 123 (verl's own)
    generation: int = 0  # how many members held this seat before
    birth_step: int = 0
    version: int = 0  # grows with every change of the weights (update or replacement)
    lineage: Lineage = field(default_factory=Lineage)

    @property
    def name(self) -> str:
        return self.seat if self.generation == 0 else f"{self.seat}-g{self.generation}"
