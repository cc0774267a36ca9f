"""The configuration of a run, composed with Hydra from verl's defaults, the AZR layer and the population."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig

CONFIG_DIR = Path(__file__).parent
PRIMARY = "azr_trainer"


def verl_config_dir() -> Path:
    """Where the installed verl keeps its Hydra files, found without importing verl (which takes seconds).

    Raises:
        ModuleNotFoundError: verl is not installed.
    """
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("verl is not installed; see README.md for the requirements files")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


def compose(overrides: Sequence[str] = (), primary: str = PRIMARY) -> DictConfig:
    """The configuration with ``overrides`` applied; interpolations stay unresolved.

    Raises:
        hydra.errors.HydraException: an override names a key or group that does not exist.
    """
    with initialize_config_dir(config_dir=str(CONFIG_DIR), version_base="1.3"):
        search = f"hydra.searchpath=[file://{verl_config_dir()}]"
        return hydra_compose(config_name=primary, overrides=[search, *overrides])
