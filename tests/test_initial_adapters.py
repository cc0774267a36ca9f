"""Founders that start from adapters on disk: what is accepted, what is refused before anything starts."""

from pathlib import Path

import pytest

from azr_overrides.config import compose
from azr_overrides.prepare import ConfigError, prepare
from tests.test_operators import adapter
from verl_populora.adapters.initial import read_initial
from verl_populora.adapters.peft_io import write_peft
from verl_populora.layout import PopulationLayout
from verl_populora.population import Population, PopulationRules

MODEL = Path(__file__).parents[1] / "recipes" / "tiny_base" / "model"
SEATS = ("teacher1", "student1")


def write(folder, seat, base=str(MODEL), **options):
    write_peft(folder / seat, adapter(**options), base)


def test_seats_without_a_folder_start_as_the_base(tmp_path):
    write(tmp_path, "student1", seed=3)
    found = read_initial(tmp_path, SEATS, str(MODEL), rank=4, alpha=8.0)
    assert list(found) == ["student1"]
    for name, module in adapter(seed=3).modules.items():
        assert found["student1"].weights.modules[name].b.equal(module.b)


@pytest.mark.parametrize(
    ("seat", "options", "message"),
    [
        ("student9", {}, "student9 are not seats of this run; its seats are teacher1, student1"),
        ("student1", {"rank": 2}, "has rank 2"),
        ("student1", {"alpha": 4.0}, "scaling 1; this run trains rank 4 and alpha 8"),
        ("student1", {"base": "other/base"}, "trained on other/base"),
    ],
)
def test_an_adapter_that_does_not_fit_is_named(tmp_path, seat, options, message):
    write(tmp_path, seat, **options)
    with pytest.raises(ValueError, match=message):
        read_initial(tmp_path, SEATS, str(MODEL), rank=4, alpha=8.0)


def test_a_run_refuses_a_folder_without_adapters_before_it_starts(tmp_path):
    (tmp_path / "adapters").mkdir()
    overrides = ["device=cpu", f"actor_rollout_ref.model.path={MODEL}", f"run_dir={tmp_path}/run", "population=1t1s"]
    with pytest.raises(ConfigError, match="population.initial_adapters.*holds no folder named after"):
        prepare(compose([*overrides, f"population.initial_adapters={tmp_path}/adapters"]))


def test_the_lineage_of_a_founder_says_where_it_came_from():
    population = Population(PopulationLayout.build(1, 1), PopulationRules(), seed=1)
    population.set_origins({"student1": {"adapter": "somewhere", "sha256": "ab"}})
    assert population.members["student1"].lineage.params == {"adapter": "somewhere", "sha256": "ab"}
    assert population.members["student1"].lineage.operator == "init"
    assert population.members["teacher1"].lineage.params == {}
