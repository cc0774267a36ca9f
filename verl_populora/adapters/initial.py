"""Adapters with which the founders of a run start, instead of the base alone."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_populora.adapters.peft_io import WEIGHTS_FILE, read_peft
from verl_populora.adapters.weights import AdapterWeights


@dataclass(frozen=True, slots=True)
class InitialAdapter:
    folder: Path
    sha256: str  # of the weights file
    weights: AdapterWeights


def read_initial(
    folder: Path, seats: Sequence[str], base_model: str, rank: int, alpha: float
) -> Mapping[str, InitialAdapter]:
    """The PEFT folders ``folder/<seat>``, by seat; a seat without one starts as the base.

    Raises:
        FileNotFoundError: there is no such folder, or a PEFT folder is incomplete.
        ValueError: nothing in it is named after a seat, something is named otherwise, or an adapter is of another base,
            rank, scaling or kind.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder}: there is no such folder")
    found = sorted(path for path in folder.iterdir() if path.is_dir())
    strangers = [path.name for path in found if path.name not in seats]
    if strangers or not found:
        what = f"{', '.join(strangers)} are not" if strangers else "it holds no folder named after"
        raise ValueError(f"{folder}: {what} seats of this run; its seats are {', '.join(seats)}")
    return {path.name: _read(path, base_model, rank, alpha) for path in found}


def _read(folder: Path, base_model: str, rank: int, alpha: float) -> InitialAdapter:
    adapter = read_peft(folder)
    if adapter.base_model_name and Path(adapter.base_model_name).name != Path(base_model).name:
        raise ValueError(f"{folder} was trained on {adapter.base_model_name}, not on {base_model}")
    for name, module in adapter.weights.modules.items():
        if module.a.shape[0] != rank or not math.isclose(module.scaling, alpha / rank, rel_tol=1e-6):
            raise ValueError(
                f"{folder}: {name} has rank {module.a.shape[0]} and scaling {module.scaling:g}; this run trains rank "
                f"{rank} and alpha {alpha:g} (actor_rollout_ref.model.lora_rank, lora_alpha)"
            )
    digest = hashlib.sha256((folder / WEIGHTS_FILE).read_bytes()).hexdigest()
    return InitialAdapter(folder, digest, adapter.weights)
