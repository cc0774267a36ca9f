"""The best members that the population has had, kept on disk after their seats went to others."""

import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_populora.adapters.peft_io import read_peft, write_peft
from verl_populora.adapters.weights import AdapterWeights
from verl_populora.files import write_atomically
from verl_populora.members import Member, Role

_INDEX_FILE = "index.json"


@dataclass(frozen=True, slots=True)
class Laureate:
    """One entry of the hall of fame; its ``name`` is unique and can stand in a match as an opponent."""

    name: str
    role: Role
    version: int
    fitness: float
    step: int  # at which it was entered
    rating: tuple[float, float]  # (mu, sigma) then


class HallOfFame:
    """Up to ``capacity`` members of each role in ``folder``, the fittest ones; survives restarts of the run.

    Adapters lie in ``folder/<member name>-v<version>`` as PEFT folders, entries in ``index.json``.
    """

    def __init__(self, folder: str | os.PathLike, capacity: int, base_model_name: str):
        if capacity < 1:
            raise ValueError(f"capacity of the hall of fame must be at least 1, not {capacity}")
        self.folder = Path(folder)
        self.capacity = capacity
        self.base_model_name = base_model_name
        self._entries = self._read_index()

    def entries(self, role: Role) -> list[Laureate]:
        """The members kept for a role, fittest first."""
        return [entry for entry in self._entries if entry.role is role]

    def consider(
        self, member: Member, weights: AdapterWeights, fitness: float, step: int, rating: tuple[float, float]
    ) -> bool:
        """Enter ``member`` if it is among the fittest of its role; returns whether it was entered.

        Call it with a member that is about to be replaced. Of a member that is entered twice the newer version counts.
        """
        entry = Laureate(member.name, member.role, member.version, fitness, step, rating)
        kept = [one for one in self.entries(member.role) if one.name != member.name]
        best = sorted([*kept, entry], key=lambda one: (-one.fitness, one.step, one.name))[: self.capacity]
        if entry not in best:
            return False
        write_peft(self.folder_of(entry), weights, self.base_model_name)
        previous = self._entries
        others = [one for one in previous if one.role is not member.role]
        self._entries = sorted([*others, *best], key=lambda one: (one.role, -one.fitness, one.step, one.name))
        self._write_index()
        for dropped in previous:
            if dropped not in self._entries and self.folder_of(dropped) != self.folder_of(entry):
                shutil.rmtree(self.folder_of(dropped))
        return True

    def load(self, entry: Laureate) -> AdapterWeights:
        return read_peft(self.folder_of(entry)).weights

    def folder_of(self, entry: Laureate) -> Path:
        """Its PEFT folder."""
        return self.folder / f"{entry.name}-v{entry.version}"

    def _read_index(self) -> list[Laureate]:
        path = self.folder / _INDEX_FILE
        if not path.is_file():
            return []
        return [
            Laureate(**{**entry, "role": Role(entry["role"]), "rating": tuple(entry["rating"])})
            for entry in json.loads(path.read_text())
        ]

    def _write_index(self) -> None:
        text = json.dumps([asdict(entry) for entry in self._entries], indent=2) + "\n"
        write_atomically(self.folder / _INDEX_FILE, text)
