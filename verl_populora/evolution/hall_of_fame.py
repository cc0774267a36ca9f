"""The best members that the population has had, kept on disk after their seats went to others."""

import json
import os
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from verl_populora.adapters.peft_io import read_peft, write_peft
from verl_populora.adapters.weights import AdapterWeights
from verl_populora.files import remove_leftovers, write_atomically
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
    left: int | None = None  # the step at which a fitter one took its place


class HallOfFame:
    """Up to ``capacity`` members of each role in ``folder``, the fittest ones; survives restarts of the run.

    Adapters lie in ``folder/<member name>-v<version>`` as PEFT folders, entries in ``index.json``. One that had to give
    way stays on disk until `forget`, so that `rewind` can bring the hall back to an earlier step of the run.
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
        return [entry for entry in self._entries if entry.role is role and entry.left is None]

    def consider(
        self, member: Member, weights: AdapterWeights, fitness: float, step: int, rating: tuple[float, float]
    ) -> bool:
        """Enter ``member`` if it is among the fittest of its role; returns whether it was entered.

        Call it with a member that is about to be replaced. Of a member that is entered twice the newer version counts.
        """
        entry = Laureate(member.name, member.role, member.version, fitness, step, rating)
        seated = self.entries(member.role)
        best = sorted([*(one for one in seated if one.name != member.name), entry], key=_rank)[: self.capacity]
        if entry not in best:
            return False
        write_peft(self.folder_of(entry), weights, self.base_model_name)
        left = [replace(one, left=step) for one in seated if one not in best]
        others = [one for one in self._entries if one not in seated]
        self._write_index([*others, *left, *best])
        return True

    def forget(self, step: int) -> None:
        """Remove what left at ``step`` or before; no checkpoint before that step may be resumed from afterwards."""
        past = [entry for entry in self._entries if entry.left is not None and entry.left <= step]
        if past:
            self._write_index([entry for entry in self._entries if entry not in past])
            self._remove_unlisted()

    def rewind(self, step: int) -> None:
        """Bring the hall to its state after ``step`` (-1: before the run), and remove what a crash left behind."""
        known = [entry for entry in self._entries if entry.step <= step]
        entries = [entry if entry.left is None or entry.left <= step else replace(entry, left=None) for entry in known]
        if entries != self._entries:
            self._write_index(entries)
        self._remove_unlisted()

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

    def _write_index(self, entries: list[Laureate]) -> None:
        self._entries = sorted(entries, key=lambda one: (one.role, *_rank(one)))
        text = json.dumps([asdict(entry) for entry in self._entries], indent=2) + "\n"
        write_atomically(self.folder / _INDEX_FILE, text)

    def _remove_unlisted(self) -> None:
        if not self.folder.is_dir():
            return
        remove_leftovers(self.folder)
        listed = {self.folder_of(entry) for entry in self._entries}
        for folder in self.folder.iterdir():
            if folder.is_dir() and folder not in listed:
                shutil.rmtree(folder)
            elif folder.is_dir():
                remove_leftovers(folder)


def _rank(entry: Laureate) -> tuple[float, int, str]:
    """Sorts the fittest first."""
    return (-entry.fitness, entry.step, entry.name)
