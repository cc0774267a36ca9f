"""Which seats exist and which adapter id each has; fixed for a run, known to trainer, engine and rollout alike.

It travels inside verl's own model configuration (``actor_rollout_ref.model.lora.population``), which reaches every
worker and every server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from verl_populora.members import Role

_RESERVED_ID = 123  # verl removes this adapter id at each synchronisation


@dataclass(frozen=True, slots=True)
class PopulationLayout:
    """Seats in the order of their adapter ids."""

    seats: tuple[str, ...]
    roles: tuple[Role, ...]
    adapter_ids: tuple[int, ...]  # 1-based, unique
    guest_id: int | None = None  # adapter id of a past student, which is served but not trained; None: no such slot

    @classmethod
    def build(cls, teachers: int, students: int, guest: bool = False) -> "PopulationLayout":
        """The layout of ``teachers`` and ``students``; both zero means the single-agent baseline.

        Args:
            guest: keep one more slot in the rollout engine, for a past student.
        """
        if teachers == 0 and students == 0:
            return cls(("agent1",), (Role.AGENT,), (1,))
        if teachers < 1 or students < 1:
            raise ValueError(
                f"a population needs at least one teacher and one student, got {teachers} and {students}; "
                "use population=single for one agent that does both"
            )
        roles = (Role.TEACHER,) * teachers + (Role.STUDENT,) * students
        seats = [f"teacher{i + 1}" for i in range(teachers)] + [f"student{i + 1}" for i in range(students)]
        *ids, guest_id = _adapter_ids(len(seats) + 1)
        return cls(tuple(seats), roles, tuple(ids), guest_id if guest else None)

    @property
    def slots(self) -> int:
        """How many adapters the rollout engine serves."""
        return len(self.seats) + (self.guest_id is not None)

    @classmethod
    def from_model_config(cls, model_config: Any) -> "PopulationLayout":
        """Read the layout back from verl's model configuration.

        Raises:
            ValueError: the run was not started through an entry point that writes it.
        """
        population = (model_config.lora or {}).get("population")
        if not population:
            raise ValueError(
                "actor_rollout_ref.model.lora.population is missing: start the run with "
                "`python -m azr_overrides.main`, which fills it in"
            )
        return cls(
            tuple(population["seats"]),
            tuple(Role(role) for role in population["roles"]),
            tuple(int(i) for i in population["adapter_ids"]),
            population["guest_id"],
        )

    def to_config(self) -> dict[str, Any]:
        return {
            "seats": list(self.seats),
            "roles": [str(role) for role in self.roles],
            "adapter_ids": list(self.adapter_ids),
            "guest_id": self.guest_id,
        }

    def id_of(self, seat: str) -> int:
        return self.adapter_ids[self.seats.index(seat)]

    def seat_of(self, adapter_id: int) -> str:
        return self.seats[self.adapter_ids.index(adapter_id)]

    def with_role(self, role: Role) -> tuple[str, ...]:
        return tuple(seat for seat, r in zip(self.seats, self.roles, strict=True) if r == role)

    def ids(self) -> Mapping[str, int]:
        return dict(zip(self.seats, self.adapter_ids, strict=True))


def _adapter_ids(count: int) -> Iterator[int]:
    candidate = 0
    for _ in range(count):
        candidate += 1
        if candidate == _RESERVED_ID:
            candidate += 1
        yield candidate
