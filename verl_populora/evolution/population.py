"""Evolution of a population: fitness in, births out.

Generational replacement within each role: the selection operator names who makes room and who may be a parent, a
variation operator is drawn for every vacated seat, and the plan says so in lineage records. Planning touches no
weights; ``lineage.make_child`` turns a record into weights.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from verl_populora.evolution.config import EvolutionConfig, EvolutionUnit
from verl_populora.evolution.registry import make_operator
from verl_populora.members import Lineage, Member, Role
from verl_populora.selfplay.selection import Contender, Selected, make_selection, ranked

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Birth:
    """One vacated seat and the recipe of its child."""

    seat: str
    replaced: str  # name of the member that makes room
    lineage: Lineage

    def child_of(self, seat_holder: Member, step: int) -> Member:
        """The record of the newborn that follows ``seat_holder`` on this seat."""
        if seat_holder.seat != self.seat:
            raise ValueError(f"the birth is for seat {self.seat}, not {seat_holder.seat}")
        return replace(
            seat_holder,
            generation=seat_holder.generation + 1,
            birth_step=step,
            version=seat_holder.version + 1,
            lineage=self.lineage,
        )


class Evolution:
    """Plans births; the paper's selection, replacement and choice of variation operators.

    ``config``, ``rank`` and ``alpha`` fix everything but the random stream. Raises ``ValueError`` for unknown
    operators, parameters or selection settings.

    Args:
        rank, alpha: of the population's adapters, written into every lineage record so that children of any parents
            fit the population; None keeps those of the first parent.
    """

    def __init__(self, config: EvolutionConfig, rank: int | None = None, alpha: float | None = None):
        self.config = config
        self._selection = make_selection(config.selection, **config.selection_params)
        size = {"rank": rank, "alpha": alpha}
        self._mutations = [make_operator(name, **{**size, **params}) for name, params in config.mutations.items()]
        self._crossovers = [make_operator(name, **{**size, **params}) for name, params in config.crossovers.items()]
        for setting, arity, operators in (
            ("mutations", 1, self._mutations),
            ("crossovers", 2, self._crossovers),
        ):
            wrong = [operator.name for operator in operators if operator.arity != arity]
            if wrong:
                raise ValueError(
                    f"population.evolution.{setting} takes operators of {arity} parent(s), not {', '.join(wrong)}"
                )
        self._said_off = False

    def is_due(self, step: int, steps_per_epoch: int | None = None) -> bool:
        """Whether to evolve after training step ``step`` (1-based)."""
        if not self.config.enabled or step < 1:
            return False
        period = self.config.interval
        if self.config.unit is EvolutionUnit.EPOCH:
            if not steps_per_epoch:
                raise ValueError("population.evolution.unit=epoch needs the number of steps in an epoch")
            period *= steps_per_epoch
        return step % period == 0

    def plan(
        self, members: Sequence[Member], fitness: Mapping[str, float], step: int, rng: np.random.Generator
    ) -> list[Birth]:
        """The births of this evolution, role by role; deterministic given the arguments.

        Every parent is a member that survives, so all children can be made before any seat is overwritten.

        Args:
            members: the living population, one member for each seat.
            fitness: by seat, larger is better.

        Raises ``ValueError`` for a seat without fitness or with one that is not finite.
        """
        if not self.config.enabled:
            return []
        missing = sorted(member.seat for member in members if member.seat not in fitness)
        if missing:
            raise ValueError(f"no fitness for {', '.join(missing)}")
        by_seat = {member.seat: member for member in members}
        roles: dict[Role, list[Contender]] = defaultdict(list)
        for member in members:
            contender = Contender(member.seat, float(fitness[member.seat]), step - member.birth_step)
            roles[member.role].append(contender)
        if all(len(group) < 2 for group in roles.values()):
            self._say_off()
            return []
        selected = {role: self._selection.select(group, rng) for role, group in roles.items()}
        births = []
        for role, outcome in selected.items():
            pool = self._parent_pool(role, selected)
            for seat in outcome.replaced:
                births.append(Birth(seat, by_seat[seat].name, self._conceive(pool, by_seat, rng)))
        return births

    def _parent_pool(self, role: Role, selected: Mapping[Role, Selected]) -> list[Contender]:
        if not self.config.cross_role:
            return list(selected[role].survivors)
        return ranked([one for outcome in selected.values() for one in outcome.survivors])

    def _conceive(self, pool: Sequence[Contender], by_seat: Mapping[str, Member], rng: np.random.Generator) -> Lineage:
        """Draws operator, parents and seed. With a single survivor there is only mutation."""
        crossing = rng.random() < self.config.crossover_rate and len(pool) >= 2
        operators = self._crossovers if crossing else self._mutations
        operator = operators[int(rng.integers(len(operators)))]
        parents = [by_seat[seat] for seat in self._selection.parents(pool, operator.arity, rng)]
        return Lineage(
            operator=operator.name,
            parents=tuple(parent.name for parent in parents),
            parent_versions=tuple(parent.version for parent in parents),
            params=operator.params,
            seed=int(rng.integers(2**63)),
        )

    def _say_off(self) -> None:
        if not self._said_off:
            self._said_off = True
            logger.warning("evolution is off: no role has two members, so there is nobody to replace or to select from")
