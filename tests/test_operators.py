"""Variation operators: what each promises about its child."""

import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution.operators import Operator
from verl_populora.evolution.operators.base import inherit
from verl_populora.evolution.operators.combination import combine_factors
from verl_populora.evolution.operators.dare import sparsified
from verl_populora.evolution.operators.gaussian import layer_of
from verl_populora.evolution.recompression import FactorSpec
from verl_populora.evolution.registry import ALIASES, make_operator, operator_names, register_operator

SHAPES = {"self_attn.q_proj": (48, 40), "mlp.down_proj": (40, 96)}


@pytest.fixture(autouse=True, scope="module")
def single_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def adapter(seed=0, rank=4, alpha=8.0, dtype=torch.float32, zero=False, layers=3) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    modules = {}
    for layer in range(layers):
        for name, (out, inner) in SHAPES.items():
            a = torch.randn(rank, inner, generator=generator) / math.sqrt(inner)
            b = torch.randn(out, rank, generator=generator) * (0.0 if zero else 0.05)
            modules[f"model.layers.{layer}.{name}"] = LoraFactors(a.to(dtype), b.to(dtype), alpha / rank)
    return AdapterWeights(modules, rank, alpha)


def dense(module: LoraFactors) -> torch.Tensor:
    return module.scaling * module.b.double() @ module.a.double()


def bits(weights: AdapterWeights) -> list[bytes]:
    tensors = [tensor for module in weights.modules.values() for tensor in (module.a, module.b)]
    return [tensor.contiguous().view(torch.uint8).numpy().tobytes() for tensor in tensors]


def parents_for(name: str, **options) -> list[AdapterWeights]:
    return [adapter(seed, **options) for seed in range(make_operator(name).arity)]


@pytest.mark.parametrize("name", ALIASES)
def test_equal_arguments_give_equal_bits_and_other_seeds_other_children(name):
    parents = parents_for(name)
    operator = make_operator(name)
    assert bits(operator(parents, 5)) == bits(operator(parents, 5))
    if name not in ("x3",):  # the subspace crossover leaves nothing to chance
        assert bits(operator(parents, 5)) != bits(operator(parents, 6))


@pytest.mark.parametrize("name", ALIASES)
def test_children_do_not_depend_on_the_number_of_threads(name):
    # Large enough that matrix products are spread over threads; ill-conditioned, so that float64 is reached too.
    parents = []
    for seed in range(make_operator(name).arity):
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.randn(32, 3000, generator=generator), torch.randn(9000, 32, generator=generator)
        b = b * torch.logspace(0, -2, 32) + b[:, :1]
        parents.append(AdapterWeights({"layers.0.proj": LoraFactors(a, b, 1.0)}, 32, 32.0))
    before = torch.get_num_threads()
    children = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            children.append(bits(make_operator(name)(parents, 1)))
    finally:
        torch.set_num_threads(before)
    assert children[0] == children[1]


@pytest.mark.parametrize("name", ALIASES)
def test_children_do_not_depend_on_where_the_parents_memory_begins(name):
    parents = parents_for(name)
    shifted = []
    for parent in parents:
        modules = {}
        for module_name, module in parent.modules.items():
            a, b = (torch.empty(tensor.numel() + 1)[1:].view(tensor.shape) for tensor in (module.a, module.b))
            modules[module_name] = LoraFactors(a.copy_(module.a), b.copy_(module.b), module.scaling)
        shifted.append(AdapterWeights(modules, parent.rank, parent.alpha))
    assert bits(make_operator(name)(parents, 5)) == bits(make_operator(name)(shifted, 5))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(list(ALIASES)),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.booleans(),
    st.integers(0, 2**63 - 1),
)
def test_children_are_finite_and_have_the_asked_rank_and_dtype(name, dtype, rank, child_rank, zero, seed):
    parents = parents_for(name, rank=rank, dtype=dtype, zero=zero)
    child = make_operator(name, rank=child_rank, alpha=2.0 * child_rank)(parents, seed)
    assert child.rank == child_rank and child.alpha == 2.0 * child_rank
    for module_name, module in child.modules.items():
        out, inner = SHAPES[module_name.split(".", 3)[3]]
        assert module.a.shape == (child_rank, inner) and module.b.shape == (out, child_rank)
        assert module.a.dtype == module.b.dtype == dtype
        assert module.scaling == 2.0
        assert torch.isfinite(module.a).all() and torch.isfinite(module.b).all()
        if zero:
            assert not module.b.any()


@pytest.mark.parametrize("name", ALIASES)
def test_the_child_of_untrained_parents_can_be_trained(name):
    child = make_operator(name)(parents_for(name, zero=True), 3)
    for module in child.modules.values():
        assert (module.a.norm(dim=1) > 0).any() and not module.b.any()


@pytest.mark.parametrize("name", ALIASES)
def test_the_child_shares_no_memory_with_its_parents(name):
    parents = parents_for(name)
    before = [bits(parent) for parent in parents]
    child = make_operator(name)(parents, 3)
    for module in child.modules.values():
        module.a.fill_(1.0)
        module.b.fill_(1.0)
    assert [bits(parent) for parent in parents] == before


@pytest.mark.parametrize("name", ALIASES)
def test_modules_outside_the_pattern_are_inherited_from_the_first_parent(name):
    parents = parents_for(name)
    child = make_operator(name, modules=r"q_proj$")(parents, 3)
    for module_name, module in parents[0].modules.items():
        same = torch.equal(child.modules[module_name].b, module.b)
        if module_name.endswith("down_proj"):
            assert same and torch.equal(child.modules[module_name].a, module.a)


@pytest.mark.parametrize("name", ALIASES)
def test_a_modules_noise_does_not_depend_on_the_other_modules(name):
    parents = parents_for(name)
    kept = "model.layers.1.mlp.down_proj"
    alone = [AdapterWeights({kept: one.modules[kept]}, one.rank, one.alpha) for one in parents]
    options = {"fraction": 1.0} if name == "m2" else {}
    whole = make_operator(name, **options)(parents, 3).modules[kept]
    part = make_operator(name, **options)(alone, 3).modules[kept]
    assert torch.equal(whole.a, part.a) and torch.equal(whole.b, part.b)


@pytest.mark.parametrize("name", ALIASES)
def test_a_parent_with_nan_is_refused(name):
    parents = parents_for(name)
    for module in parents[0].modules.values():
        module.b[3, 1] = float("nan")
    options = {"share": 1.0} if name == "x2" else {"fraction": 1.0} if name == "m2" else {}
    with pytest.raises(ValueError, match="not finite"):
        make_operator(name, **options)(parents, 3)


@pytest.mark.parametrize("name", ["m1", "m3", "x3", "x4"])
def test_spectral_operators_see_the_update_and_not_its_factorisation(name):
    parents = parents_for(name)
    generator = torch.Generator().manual_seed(9)
    others = []
    for parent in parents:
        modules = {}
        for module_name, module in parent.modules.items():
            mixing = torch.eye(4) * 2 + 0.3 * torch.randn(4, 4, generator=generator)
            modules[module_name] = LoraFactors(torch.linalg.solve(mixing, module.a), module.b @ mixing, module.scaling)
        others.append(AdapterWeights(modules, parent.rank, parent.alpha))
    first, second = make_operator(name)(parents, 3), make_operator(name)(others, 3)
    for module_name, module in first.modules.items():
        other = second.modules[module_name]
        assert torch.allclose(module.a, other.a, atol=2e-4)
        assert torch.allclose(module.b, other.b, atol=2e-4 * float(module.b.abs().max()))


@pytest.mark.parametrize("name", ["x2", "x3", "x4"])
def test_crossing_two_equal_parents_gives_the_parent(name):
    parent = adapter()
    child = make_operator(name)([parent, parent], 3)
    for module_name, module in parent.modules.items():
        error = (dense(child.modules[module_name]) - dense(module)).norm()
        assert error <= 1e-5 * dense(module).norm()


# ---- M1 ------------------------------------------------------------------------------------------------------------


def test_spectral_mutation_without_noise_is_the_parent():
    parent = adapter()
    child = make_operator("m1", epsilon=0.0)([parent], 3)
    for module_name, module in parent.modules.items():
        assert (dense(child.modules[module_name]) - dense(module)).norm() <= 1e-5 * dense(module).norm()


def test_spectral_mutation_turns_vectors_and_scales_values_by_epsilon():
    generator = torch.Generator().manual_seed(0)
    rank, epsilon = 32, 0.05
    u, v = (torch.linalg.qr(torch.randn(n, rank, generator=generator))[0] for n in (300, 200))
    values = torch.logspace(0, 4, rank)
    parent = AdapterWeights({"layer": LoraFactors(v.T, u * values, 1.0)}, rank, float(rank))
    shifts, angles = [], []
    for seed in range(40):
        child = make_operator("m1", epsilon=epsilon)([parent], seed).modules["layer"]
        left, child_values, _ = torch.linalg.svd(dense(child), full_matrices=False)
        shifts.append(torch.log(child_values[:rank].flip(0) / values))
        left = left[:, :rank].flip(1).float()
        assert torch.linalg.svdvals(u.T @ left).min() > 1 - 1e-4  # the span is the parent's
        angles.append(torch.arccos((left * u).sum(0).abs().clamp(max=1.0)))
    shift, angle = torch.stack(shifts), torch.stack(angles)
    # Values a factor 1.35 apart may swap places at 0.05 noise so rarely that the spread stays that of the noise.
    assert shift.mean().abs() < 0.01
    assert abs(float(shift.std()) / epsilon - 1) < 0.1
    assert abs(float(angle.square().mean().sqrt()) / epsilon - 1) < 0.1


# ---- M2 and M4 -----------------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(st.floats(0.01, 0.5), st.floats(1e-4, 1e3), st.integers(0, 2**31))
def test_gaussian_noise_has_the_asked_scale_on_every_factor(epsilon, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    module = LoraFactors(
        torch.randn(8, 600, generator=generator), torch.randn(500, 8, generator=generator) * scale, 1.0
    )
    child = make_operator("m4", epsilon=epsilon)([AdapterWeights({"layer": module}, 8, 8.0)], seed).modules["layer"]
    for new, old in ((child.a, module.a), (child.b, module.b)):
        noise = (new - old) / (epsilon * old.std())
        assert abs(float(noise.std()) - 1) < 0.06 and abs(float(noise.mean())) < 0.06


def test_layer_gaussian_changes_whole_layers_and_only_the_asked_fraction():
    parent = adapter(layers=9)
    child = make_operator("m2", fraction=0.33)([parent], 3)
    changed = {
        layer_of(name) for name, module in parent.modules.items() if not torch.equal(module.b, child.modules[name].b)
    }
    assert len(changed) == 3
    for name, module in parent.modules.items():
        assert torch.equal(module.a, child.modules[name].a) == (layer_of(name) not in changed)


def test_layers_are_recognised_by_the_first_number_in_a_name():
    assert layer_of("model.layers.11.mlp.experts.3.up_proj") == "model.layers.11"
    assert layer_of("lm_head") == "lm_head"


# ---- M3 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "fraction", "left"), [(10, 0.3, 7), (1, 0.9, 1), (4, 0.99, 1), (8, 0.0, 8)])
def test_masking_drops_components_and_leaves_the_others_alone(rank, fraction, left):
    parent = adapter(rank=rank)
    child = make_operator("m3", fraction=fraction)([parent], 3)
    for name, module in parent.modules.items():
        before = torch.linalg.svdvals(dense(module))[:rank]
        after = torch.linalg.svdvals(dense(child.modules[name]))
        kept = after[after > 1e-6 * before[0]]
        assert len(kept) == left
        assert all((before - value).abs().min() <= 1e-5 * before[0] for value in kept)
        assert (child.modules[name].a.norm(dim=1) > 0.1).all()


# ---- X1 ------------------------------------------------------------------------------------------------------------


def test_dare_keeps_the_update_in_expectation():
    module = adapter(1).modules["model.layers.0.self_attn.q_proj"]
    generator = torch.Generator().manual_seed(0)
    draws = torch.stack([dense(sparsified(module, 0.7, generator)) for _ in range(4000)])
    deviation = (draws.mean(0) - dense(module)) / (draws.std(0) / math.sqrt(len(draws)))
    # Standard scores of an unbiased estimator: spread 1, mean 0; a bias of a tenth of a deviation would show.
    assert abs(float(deviation.mean())) < 0.1
    assert 0.8 < float(deviation.std()) < 1.2


def test_dare_drops_the_asked_share_by_independent_masks():
    module = LoraFactors(torch.ones(16, 4000), torch.ones(4000, 16), 1.0)
    sparse = sparsified(module, 0.7, torch.Generator().manual_seed(0))
    kept_a, kept_b = sparse.a != 0, sparse.b != 0
    assert abs(float(kept_a.float().mean()) - 0.3) < 0.01
    assert abs(float(kept_b.float().mean()) - 0.3) < 0.01
    assert abs(float((kept_a.T & kept_b).float().mean()) - 0.09) < 0.01
    assert sparse.scaling == pytest.approx(1 / 0.3**2, rel=1e-3)


def test_dare_without_dropping_is_the_best_approximation_of_the_weighted_mean():
    first, second = parents_for("x1")
    child = make_operator("x1", drop=0.0, weight=0.25)([first, second], 3)
    for name, module in child.modules.items():
        exact = 0.25 * dense(first.modules[name]) + 0.75 * dense(second.modules[name])
        assert (dense(module) - exact).norm() <= torch.linalg.svdvals(exact)[4:].norm() * (1 + 1e-5)


# ---- X2 and X3 -----------------------------------------------------------------------------------------------------


def test_layerwise_takes_every_module_whole_from_one_parent():
    first, second = parents_for("x2", layers=40)
    child = make_operator("x2", share=0.7)([first, second], 3)
    from_first = [torch.equal(child.modules[name].b, first.modules[name].b) for name in first.modules]
    for name, is_first in zip(first.modules, from_first, strict=True):
        source = first if is_first else second
        assert torch.equal(child.modules[name].a, source.modules[name].a)
        assert torch.equal(child.modules[name].b, source.modules[name].b)
    assert 0.55 < sum(from_first) / len(from_first) < 0.85


def test_subspace_crossover_joins_leading_and_trailing_components():
    first, second = parents_for("x3", rank=6)
    child = make_operator("x3", share=0.34)([first, second], 3)
    for name, module in child.modules.items():
        expected = torch.zeros_like(dense(module))
        for parent, start, stop in ((first, 0, 2), (second, 2, 6)):
            u, s, v = torch.linalg.svd(dense(parent.modules[name]), full_matrices=False)
            expected += (u[:, start:stop] * s[start:stop]) @ v[start:stop]
        assert (dense(module) - expected).norm() <= 1e-5 * expected.norm()


# ---- X4 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("eta", [1.0, 1.3])
def test_extrapolation_acts_on_the_updates_and_recompresses_exactly(eta):
    better, worse = parents_for("x4")
    child = make_operator("x4", eta_min=eta, eta_max=eta)([better, worse], 3)
    for name, module in child.modules.items():
        exact = dense(worse.modules[name]) + eta * (dense(better.modules[name]) - dense(worse.modules[name]))
        u, s, v = torch.linalg.svd(exact, full_matrices=False)
        best = (u[:, :4] * s[:4]) @ v[:4]
        assert (dense(module) - best).norm() <= 1e-5 * exact.norm()


def test_parents_of_other_ranks_and_alphas_make_a_child_of_the_asked_rank():
    better, worse = adapter(0, rank=3, alpha=6.0), adapter(1, rank=5, alpha=40.0)
    child = make_operator("x4", rank=8, alpha=8.0, eta_min=1.5, eta_max=1.5)([better, worse], 3)
    for name, module in child.modules.items():
        exact = 1.5 * dense(better.modules[name]) - 0.5 * dense(worse.modules[name])
        assert (dense(module) - exact).norm() <= 1e-5 * exact.norm()


@given(st.floats(-0.5, 1.5), st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_factorwise_combination_has_the_documented_cross_term(weight, seed):
    name = "model.layers.0.self_attn.q_proj"
    first, second = adapter(seed).modules[name], adapter(seed + 1).modules[name]
    child = combine_factors([(weight, first), (1 - weight, second)], FactorSpec(4, 8.0, torch.float32))
    cross = first.scaling * (first.b - second.b).double() @ (first.a - second.a).double()
    expected = weight * dense(first) + (1 - weight) * dense(second) - weight * (1 - weight) * cross
    assert torch.allclose(dense(child), expected, atol=1e-6)


def test_the_factorwise_switch_changes_the_child():
    parents = parents_for("x4")
    exact = make_operator("x4", eta_min=0.5, eta_max=0.5)(parents, 3)
    cheap = make_operator("x4", eta_min=0.5, eta_max=0.5, factorwise=True)(parents, 3)
    name = "model.layers.0.self_attn.q_proj"
    mean = 0.5 * (dense(parents[0].modules[name]) + dense(parents[1].modules[name]))
    errors = [float((dense(child.modules[name]) - mean).norm() / mean.norm()) for child in (exact, cheap)]
    assert errors[0] < errors[1]


# ---- inheritance, errors, registry ---------------------------------------------------------------------------------


def test_inheriting_into_another_scaling_keeps_the_update():
    module = adapter().modules["model.layers.0.self_attn.q_proj"]
    child = inherit(module, FactorSpec(4, 32.0, torch.float32))
    assert torch.equal(child.a, module.a)
    assert torch.allclose(dense(child), dense(module))


def test_parents_that_do_not_fit_are_refused_by_name():
    one, other = parents_for("x2")
    wider = {**other.modules, "model.layers.0.self_attn.q_proj": other.modules["model.layers.0.mlp.down_proj"]}
    fewer = {name: module for name, module in other.modules.items() if "layers.2" not in name}
    with pytest.raises(ValueError, match="q_proj has .* different bases"):
        make_operator("x2")([one, AdapterWeights(wider, 4, 8.0)], 0)
    with pytest.raises(ValueError, match="different modules: 2 are in one only"):
        make_operator("x2")([one, AdapterWeights(fewer, 4, 8.0)], 0)
    with pytest.raises(ValueError, match="takes 2 parent"):
        make_operator("x2")([one], 0)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("m1", {"epsilon": -0.1}, "epsilon"),
        ("m2", {"fraction": 0.0}, "fraction of layers"),
        ("m3", {"fraction": 1.0}, "fraction of components"),
        ("x1", {"drop": 1.0}, "drop probability"),
        ("x3", {"share": 1.0}, "share"),
        ("x4", {"eta_min": 2.0}, "eta_min"),
        ("m1", {"modules": "("}, "regular expression"),
        ("m1", {"rank": 0}, "rank"),
        ("m1", {"sigma": 1.0}, "does not take these parameters"),
        ("m9", {}, "unknown operator 'm9'"),
    ],
)
def test_bad_parameters_are_refused_before_any_work(name, params, message):
    with pytest.raises(ValueError, match=message):
        make_operator(name, **params)


def test_a_pattern_without_a_match_is_refused():
    with pytest.raises(ValueError, match="matches none of the adapter's 6 modules"):
        make_operator("m1", modules="k_proj")([adapter()], 0)


@pytest.mark.parametrize("name", ALIASES)
def test_parameters_rebuild_the_operator(name):
    operator = make_operator(name, modules="q_proj", rank=7)
    assert make_operator(operator.name, **operator.params) == operator


def test_an_installed_package_adds_an_operator_by_entry_point(tmp_path, monkeypatch):
    (tmp_path / "scaling_operator.py").write_text(
        "from dataclasses import dataclass\n"
        "from verl_populora.evolution.operators import Operator\n"
        "from verl_populora.evolution.operators.base import inherit\n"
        "@dataclass(frozen=True)\n"
        "class Halving(Operator):\n"
        "    name = 'halving'\n"
        "    arity = 1\n"
        "    def vary(self, name, parents, spec, generator, shared):\n"
        "        child = inherit(parents[0], spec)\n"
        "        child.b.mul_(0.5)\n"
        "        return child\n"
    )
    package = tmp_path / "scaling_operator-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: scaling-operator\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text("[verl_populora.operators]\nhalving = scaling_operator:Halving\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("verl_populora.evolution.registry._OPERATORS", dict(_registered()))
    assert "halving" in operator_names(arity=1)
    parent = adapter()
    child = make_operator("halving")([parent], 0)
    for name, module in parent.modules.items():
        assert torch.allclose(dense(child.modules[name]), 0.5 * dense(module))


def test_a_taken_name_is_not_registered_twice(monkeypatch):
    monkeypatch.setattr("verl_populora.evolution.registry._OPERATORS", dict(_registered()))

    @dataclass(frozen=True)
    class Impostor(Operator):
        name: ClassVar[str] = "spectral"
        arity: ClassVar[int] = 1

        def vary(self, name, parents, spec, generator, shared):
            return inherit(parents[0], spec)

    with pytest.raises(ValueError, match="already"):
        register_operator(Impostor)


def _registered() -> dict[str, type[Operator]]:
    from verl_populora.evolution import registry

    return registry._OPERATORS
