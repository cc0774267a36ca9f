"""Plans of births, lineage, hall of fame and diversity."""

import logging
import math

import numpy as np
import pytest
import torch

from tests.test_operators import adapter, bits, dense
from verl_populora.adapters.peft_io import read_peft, write_peft
from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution import (
    Evolution,
    EvolutionConfig,
    HallOfFame,
    child_of_each_operator,
    diversity,
    make_child,
    make_operator,
    operator_names,
)
from verl_populora.members import Lineage, Member, Role


def population(teachers: int, students: int) -> list[Member]:
    seats = [(Role.TEACHER, i) for i in range(1, teachers + 1)] + [(Role.STUDENT, i) for i in range(1, students + 1)]
    return [Member(f"{role}{i}", role, adapter_id, version=7) for adapter_id, (role, i) in enumerate(seats, start=1)]


def fitness_by_number(members: list[Member]) -> dict[str, float]:
    return {member.seat: float(member.seat[-1]) for member in members}


def plan(config: EvolutionConfig, members: list[Member], seed: int = 0, step: int = 10):
    evolution = Evolution(config, rank=4, alpha=8.0)
    return evolution.plan(members, fitness_by_number(members), step, np.random.default_rng(seed))


def test_the_weakest_of_each_role_makes_room_for_a_child_of_survivors():
    for seed in range(30):
        members = population(4, 4)
        births = plan(EvolutionConfig(), members, seed)
        assert [birth.seat for birth in births] == ["teacher1", "student1"]
        for birth in births:
            role = birth.seat[:7]
            assert all(parent.startswith(role) and parent != birth.seat for parent in birth.lineage.parents)
            assert birth.lineage.parent_versions == (7,) * len(birth.lineage.parents)
            assert birth.lineage.params["rank"] == 4 and birth.lineage.params["alpha"] == 8.0
            if len(birth.lineage.parents) == 2:
                fitter, other = birth.lineage.parents
                assert fitter[-1] > other[-1]


def test_plans_are_reproduced_by_the_random_state():
    members = population(8, 8)
    assert plan(EvolutionConfig(), members, 3) == plan(EvolutionConfig(), members, 3)
    assert plan(EvolutionConfig(), members, 3) != plan(EvolutionConfig(), members, 4)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 0.0), (0.5, 0.5), (1.0, 1.0)])
def test_crossover_happens_at_its_rate_and_all_operators_are_used(rate, expected):
    births = [
        birth for seed in range(200) for birth in plan(EvolutionConfig(crossover_rate=rate), population(4, 4), seed)
    ]
    crossed = [len(birth.lineage.parents) == 2 for birth in births]
    assert abs(np.mean(crossed) - expected) < 0.08
    used = {birth.lineage.operator for birth in births}
    expected_operators = set(operator_names(1) if rate < 1 else []) | set(operator_names(2) if rate > 0 else [])
    assert used == expected_operators


def test_a_role_with_one_survivor_mutates():
    for seed in range(20):
        births = plan(EvolutionConfig(crossover_rate=1.0), population(2, 2), seed)
        assert [birth.seat for birth in births] == ["teacher1", "student1"]
        assert {len(birth.lineage.parents) for birth in births} == {1}


def test_roles_mix_only_where_allowed():
    config = EvolutionConfig(crossover_rate=1.0, cross_role=True)
    births = [birth for seed in range(40) for birth in plan(config, population(4, 4), seed)]
    roles = {parent[:7] for birth in births for parent in birth.lineage.parents}
    assert roles == {"teacher", "student"}


def test_young_members_are_protected():
    members = population(4, 4)
    config = EvolutionConfig(selection_params={"min_age": 10})
    assert plan(config, members, step=9) == []
    assert len(plan(config, members, step=10)) == 2


def test_evolution_is_off_for_one_teacher_and_one_student_and_says_so_once(caplog):
    evolution = Evolution(EvolutionConfig())
    members = population(1, 1)
    with caplog.at_level(logging.WARNING):
        for step in (10, 20, 30):
            assert evolution.plan(members, fitness_by_number(members), step, np.random.default_rng(0)) == []
    assert [record.message for record in caplog.records if "evolution is off" in record.message] == [
        "evolution is off: no role has two members, so there is nobody to replace or to select from"
    ]


@pytest.mark.parametrize(
    ("config", "steps_per_epoch", "due"),
    [
        (EvolutionConfig(), None, [10, 20, 30]),
        (EvolutionConfig.from_mapping({"interval": 2, "unit": "epoch"}), 6, [12, 24]),
        (EvolutionConfig(enabled=False), None, []),
    ],
)
def test_evolution_is_due_at_its_interval(config, steps_per_epoch, due):
    evolution = Evolution(config)
    assert [step for step in range(35) if evolution.is_due(step, steps_per_epoch)] == due


def test_a_child_takes_over_the_seat_as_a_new_member():
    members = population(4, 4)
    birth = plan(EvolutionConfig(), members)[0]
    child = birth.child_of(members[0], step=10)
    assert (child.seat, child.role, child.adapter_id) == ("teacher1", Role.TEACHER, 1)
    assert (child.name, child.birth_step, child.version) == ("teacher1-g1", 10, 8)
    assert child.lineage is birth.lineage
    with pytest.raises(ValueError, match="seat teacher1, not teacher2"):
        birth.child_of(members[1], step=10)


@pytest.mark.parametrize("name", operator_names())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_child_is_recomputed_bit_for_bit_from_checkpoints_and_its_lineage(tmp_path, name, dtype):
    weights = {"teacher3": adapter(1, dtype=dtype), "teacher4": adapter(2, dtype=dtype)}
    arity = make_operator(name).arity
    lineage = Lineage(name, tuple(weights)[:arity], (5, 9)[:arity], make_operator(name, rank=4).params, seed=2**62 + 1)
    child = make_child(lineage, lambda member, version: weights[member])
    for member, version in (("teacher3", 5), ("teacher4", 9)):
        write_peft(tmp_path / f"{member}-{version}", weights[member], "base")
    again = make_child(lineage, lambda member, version: read_peft(tmp_path / f"{member}-{version}").weights)
    assert list(again.modules) != []
    for module_name, module in child.modules.items():
        other = again.modules[module_name]
        pair = [AdapterWeights({module_name: one}, 4, 8.0) for one in (module, other)]
        assert bits(pair[0]) == bits(pair[1])


def test_every_operator_makes_its_child_of_the_same_parents():
    parents = [adapter(1), adapter(2)]
    children = child_of_each_operator(parents, seed=3)
    assert list(children) == operator_names()
    assert bits(children["spectral"]) == bits(make_operator("spectral")(parents[:1], 3))
    assert bits(children["dare"]) == bits(make_operator("dare")(parents, 3))


def test_a_founder_has_no_recipe():
    with pytest.raises(ValueError, match="founder"):
        make_child(Lineage(), lambda member, version: adapter())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "interval"),
        ({"crossover_rate": 1.5}, "crossover_rate"),
        ({"mutations": {}}, "mutations is empty"),
        ({"crossovers": {}}, "crossovers is empty"),
        ({"intervall": 5}, "unknown population.evolution settings: intervall"),
        ({"unit": "hour"}, "hour"),
        ({"mutations": {"dare": None}}, "takes operators of 1 parent"),
        ({"mutations": {"m1": {"eps": 1.0}}}, "does not take these parameters"),
        ({"selection": "roulette"}, "unknown selection operator"),
        ({"selection_params": {"fraction": 2.0}}, "fraction"),
        ({"hall_of_fame": -1}, "hall_of_fame"),
        ({"hall_of_fame": 1, "hall_of_fame_matches": 1.5}, "hall_of_fame_matches"),
        ({"hall_of_fame_matches": 0.2}, "needs past members: set population.evolution.hall_of_fame"),
    ],
)
def test_bad_settings_are_refused_at_the_start(settings, message):
    with pytest.raises(ValueError, match=message):
        Evolution(EvolutionConfig.from_mapping(settings))


def test_a_member_without_fitness_is_refused():
    members = population(2, 2)
    with pytest.raises(ValueError, match="no fitness for student2"):
        Evolution(EvolutionConfig()).plan(
            members, {"teacher1": 0.0, "teacher2": 1.0, "student1": 0.0}, 10, np.random.default_rng(0)
        )


# ---- hall of fame --------------------------------------------------------------------------------------------------


def test_the_hall_of_fame_keeps_the_fittest_of_each_role_over_restarts(tmp_path):
    members = population(4, 1)
    hall = HallOfFame(tmp_path, capacity=2, base_model_name="base")
    entered = [
        hall.consider(member, adapter(seed), fitness, seed, (fitness, 1.0))
        for seed, (member, fitness) in enumerate(zip(members, (3.0, 1.0, 2.0, 0.5, -9.0), strict=True))
    ]
    assert entered == [True, True, True, False, True]
    restarted = HallOfFame(tmp_path, capacity=2, base_model_name="base")
    assert [entry.name for entry in restarted.entries(Role.TEACHER)] == ["teacher1", "teacher3"]
    assert [entry.name for entry in restarted.entries(Role.STUDENT)] == ["student1"]
    restarted.forget(step=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "index.json",
        "student1-v7",
        "teacher1-v7",
        "teacher3-v7",
    ]
    loaded = restarted.load(restarted.entries(Role.TEACHER)[1])
    for name, module in adapter(2).modules.items():
        assert torch.equal(loaded.modules[name].b, module.b)


def test_a_later_version_replaces_the_same_member_in_the_hall_of_fame(tmp_path):
    hall = HallOfFame(tmp_path, capacity=3, base_model_name="base")
    first = Member("student1", Role.STUDENT, 1, version=3)
    later = Member("student1", Role.STUDENT, 1, version=8)
    assert hall.consider(first, adapter(0), 5.0, 10, (8.0, 1.0))
    assert hall.consider(later, adapter(1), 4.0, 20, (7.0, 1.0))
    (entry,) = hall.entries(Role.STUDENT)
    assert (entry.version, entry.fitness, entry.rating) == (8, 4.0, (7.0, 1.0))
    hall.forget(step=19)
    assert (tmp_path / "student1-v3").exists()
    hall.forget(step=20)
    assert not (tmp_path / "student1-v3").exists()


def test_the_hall_of_fame_goes_back_with_a_resumed_run(tmp_path):
    def hall():
        return HallOfFame(tmp_path, capacity=1, base_model_name="base")

    first, second = population(2, 1)[:2]
    assert hall().consider(first, adapter(0), 1.0, 10, (8.0, 1.0))
    before = hall().entries(Role.TEACHER)
    assert hall().consider(second, adapter(1), 2.0, 20, (9.0, 1.0))
    after = hall().entries(Role.TEACHER)
    assert [entry.name for entry in after] == [second.name]
    for name in (f"{first.name}-v{first.version}/.adapter_config.json.77", ".index.json.77"):
        (tmp_path / name).write_text("cut")

    hall().rewind(step=19)
    assert hall().entries(Role.TEACHER) == before
    kept = hall().load(before[0]).modules
    assert all(torch.equal(kept[name].b, module.b) for name, module in adapter(0).modules.items())
    assert not list(tmp_path.rglob(".*")) and not hall().folder_of(after[0]).exists()
    assert hall().consider(second, adapter(1), 2.0, 20, (9.0, 1.0))
    assert hall().entries(Role.TEACHER) == after
    hall().rewind(step=-1)
    assert hall().entries(Role.TEACHER) == [] and [path.name for path in tmp_path.iterdir()] == ["index.json"]


# ---- diversity -----------------------------------------------------------------------------------------------------


def flat(weights: AdapterWeights) -> torch.Tensor:
    return torch.cat([dense(module).flatten() for module in weights.modules.values()])


def test_cosines_distances_and_norms_are_those_of_the_dense_updates():
    adapters = {f"student{i}": adapter(i, rank=3 + i) for i in range(3)}
    report = diversity(adapters)
    assert len(report.pairs) == 3 and not report.collapsed
    for pair in report.pairs:
        one, other = flat(adapters[pair.first]), flat(adapters[pair.second])
        assert pair.cosine == pytest.approx(float(one @ other / one.norm() / other.norm()), abs=1e-5)
        expected = float((one - other).norm() / (one.norm() * other.norm()).sqrt())
        assert pair.distance == pytest.approx(expected, rel=1e-4)
        assert report.norms[pair.first] == pytest.approx(float(one.norm()), rel=1e-5)
    assert report.mean_cosine == pytest.approx(np.mean([pair.cosine for pair in report.pairs]))


def test_principal_angles_of_spaces_turned_by_a_known_angle():
    angle = 0.3
    identity = torch.eye(8)
    turned = identity[:, :2] * math.cos(angle) + identity[:, 2:4] * math.sin(angle)
    one = AdapterWeights({"layer": LoraFactors(identity[:2], identity[:, :2], 1.0)}, 2, 2.0)
    other = AdapterWeights({"layer": LoraFactors(identity[:2] * 3, turned, 1.0)}, 2, 2.0)
    (pair,) = diversity({"a": one, "b": other}).pairs
    assert pair.left_angle == pytest.approx(angle, abs=1e-3)
    assert pair.right_angle == pytest.approx(0.0, abs=1e-3)


def test_copies_up_to_a_scale_count_as_a_collapse_and_fresh_adapters_do_not():
    parent = adapter()
    scaled = AdapterWeights(
        {name: LoraFactors(module.a, module.b * 1.5, module.scaling) for name, module in parent.modules.items()}, 4, 8.0
    )
    fresh = adapter(3, zero=True)
    assert diversity({"a": parent, "b": scaled, "c": fresh}).collapsed
    assert not diversity({"a": fresh, "b": adapter(4, zero=True)}).collapsed
    assert not diversity({"a": parent, "b": adapter(5)}).collapsed
    assert diversity({"a": parent}).pairs == ()
    mutant = make_operator("m4", epsilon=0.01)([parent], 1)
    assert diversity({"a": parent, "b": mutant}).collapsed


def test_adapters_of_different_bases_are_not_compared():
    one = adapter()
    fewer = AdapterWeights({name: one.modules[name] for name in list(one.modules)[:2]}, 4, 8.0)
    with pytest.raises(ValueError, match="a and b adapt different modules"):
        diversity({"a": one, "b": fewer})
