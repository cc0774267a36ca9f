"""Names of sample groups: which samples share a baseline, and whose they are.

verl's replay buffer takes everything before the first ``_`` of a sample's key for the prompt it belongs to, and
everything before the last two for its advantage group. A group's name therefore starts with the episode and says all
that an advantage estimator needs, so that estimators stay pure functions of what verl hands them.
"""

from dataclasses import dataclass
from enum import StrEnum

_PADDING_PREFIX = "pad"  # verl names rows that only fill up a batch "pad<hex>"


class Part(StrEnum):
    """What a sample's author did."""

    PROPOSE = "propose"
    SOLVE = "solve"


@dataclass(frozen=True, slots=True)
class Group:
    """One group of samples with a common prompt."""

    episode: str
    adapter_id: int
    part: Part
    kind: str  # task kind, for example "code_o"
    name: str  # distinguishes groups of one episode

    def __post_init__(self):
        for field in (self.episode, self.name):
            if "_" in field or ":" in field or "." in field:
                raise ValueError(f"{field!r} has a character that separates the parts of a sample's key")

    @property
    def uid(self) -> str:
        kind = self.kind.replace("_", "-")
        return f"{self.episode}_{self.adapter_id}:{self.part}.{kind}.{self.name}"

    @classmethod
    def parse(cls, uid: str) -> "Group | None":
        """The group that ``uid`` names; None for verl's padding rows.

        Raises:
            ValueError: ``uid`` was not made by this class.
        """
        if uid.startswith(_PADDING_PREFIX):
            return None
        try:
            episode, rest = uid.split("_", 1)
            adapter_id, rest = rest.split(":", 1)
            part, kind, name = rest.split(".")
            return cls(episode, int(adapter_id), Part(part), kind.replace("-", "_"), name)
        except ValueError as error:
            raise ValueError(f"{uid!r} is not the name of a sample group: {error}") from None
