"""Set before any test imports verl: the CPU platform and engine of this project, nothing from the network."""

import os

import pytest

os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_populora.engine.platform_cpu")
os.environ.setdefault("VERL_ENGINE_VENDOR", "populora")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def population_run(tmp_path_factory):
    """Run directory of two teachers and two students that trained for four steps, undisturbed."""
    from tests.e2e_support import POPULATION, train

    run_dir = tmp_path_factory.mktemp("population") / "run"
    train(run_dir, *POPULATION)
    return run_dir
