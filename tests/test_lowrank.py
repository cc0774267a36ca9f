"""Low-rank algebra against dense float64 references."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_populora.adapters.weights import LoraFactors
from verl_populora.evolution.lowrank import svd, svd_of_sum
from verl_populora.evolution.recompression import FactorSpec, recompress

TOLERANCE = 1e-5
KINDS = ("random", "zero_b", "repeated_columns", "graded", "nearly_collinear", "opposed_scales", "zero_rows")


def dense(update: LoraFactors) -> torch.Tensor:
    return update.scaling * update.b.double() @ update.a.double()


def make_update(kind: str, out: int, inner: int, rank: int, scale: float, dtype: torch.dtype, seed: int):
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(rank, inner, generator=generator, dtype=torch.float64)
    b = torch.randn(out, rank, generator=generator, dtype=torch.float64)
    if kind == "zero_b":
        b.zero_()
    elif kind == "repeated_columns":
        b[:, 1:] = b[:, :1]
        a[1:] = a[:1]
    elif kind == "graded":
        b *= torch.logspace(0, -9, rank, dtype=torch.float64)
    elif kind == "nearly_collinear":
        b[:, 1:] = b[:, :1] + 1e-4 * b[:, 1:]
    elif kind == "opposed_scales":
        grade = torch.logspace(6, -6, rank, dtype=torch.float64)
        b, a = b * grade, a / grade[:, None]
    elif kind == "zero_rows":
        b[: out // 2] = 0.0
    return LoraFactors(a.to(dtype), (b * scale).to(dtype), 0.5)


updates = st.builds(
    make_update,
    kind=st.sampled_from(KINDS),
    out=st.integers(1, 300),
    inner=st.integers(1, 300),
    rank=st.integers(1, 12),
    scale=st.sampled_from([1e-8, 1e-2, 1.0, 1e4]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**31),
)


@settings(max_examples=150, deadline=None)
@given(updates)
def test_triplets_reconstruct_the_update_with_orthonormal_vectors_and_exact_values(update):
    reference = dense(update)
    decomposition = svd(update)
    u, v = decomposition.u().double(), decomposition.v().double()
    size = decomposition.size
    assert size == min(*reference.shape, update.a.shape[0])
    values = torch.linalg.svdvals(reference)
    error = (u * decomposition.values) @ v.T - reference
    assert error.norm() <= TOLERANCE * reference.norm()
    assert (decomposition.values - values[:size]).abs().max() <= TOLERANCE * values[0]
    assert (u.T @ u - torch.eye(size)).abs().max() <= TOLERANCE
    assert (v.T @ v - torch.eye(size)).abs().max() <= TOLERANCE


@settings(max_examples=60, deadline=None)
@given(updates, st.integers(1, 12), st.integers(0, 2**31), st.floats(-2.0, 2.0))
def test_recompression_of_a_sum_is_the_best_approximation_of_its_rank(first, rank, seed, weight):
    out, inner = first.b.shape[0], first.a.shape[1]
    second = make_update("random", out, inner, 5, 1.0, first.a.dtype, seed)
    total = dense(first) + weight * dense(second)
    child = recompress([(1.0, first), (weight, second)], FactorSpec(rank, 16.0, torch.float64))
    assert child.a.shape == (rank, inner) and child.b.shape == (out, rank)
    tail = torch.linalg.svdvals(total)[rank:].norm()
    error = (dense(child) - total).norm()
    scale = dense(first).norm() + abs(weight) * dense(second).norm()
    assert error <= tail + TOLERANCE * scale


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 8))
def test_triplets_do_not_depend_on_the_factorisation(seed, rank):
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=torch.float64))[0] for n in (90, 70))
    values = torch.logspace(0, -2, rank, dtype=torch.float64)
    mixing = torch.randn(rank, rank, generator=generator, dtype=torch.float64) + 3 * torch.eye(rank)
    one = LoraFactors(v.T, u * values, 1.0)
    other = LoraFactors(torch.linalg.solve(mixing, v.T), (u * values) @ mixing / 4.0, 4.0)
    first, second = svd(one), svd(other)
    assert torch.allclose(first.u(), second.u(), atol=1e-6)
    assert torch.allclose(first.v(), second.v(), atol=1e-6)
    assert torch.allclose(first.values, second.values, rtol=1e-8)


def test_overlap_of_two_updates_gives_their_inner_product():
    first, second = (make_update("random", 60, 50, 6, 1.0, torch.float32, seed) for seed in (1, 2))
    one, other = svd(first), svd(second)
    left, right = one.overlap(other)
    product = (left * right * torch.outer(one.values, other.values)).sum()
    assert torch.isclose(product, (dense(first) * dense(second)).sum(), rtol=1e-5)


def test_squares_that_underflow_in_float32_do_not_lose_the_update():
    update = make_update("random", 600, 500, 4, 1.0, torch.float32, 3)
    tiny = LoraFactors(update.a, update.b * 1e-30, update.scaling)
    assert torch.allclose(svd(tiny).values, svd(update).values * 1e-30, rtol=1e-5)


def test_a_large_factor_is_decomposed_without_a_dense_matrix():
    generator = torch.Generator().manual_seed(0)
    # The dense update would need 1.6 TB.
    update = LoraFactors(
        torch.randn(4, 400_000, generator=generator), torch.randn(1_000_000, 4, generator=generator), 1.0
    )
    decomposition = svd(update)
    u = decomposition.u().double()
    assert (u.T @ u - torch.eye(4)).abs().max() <= TOLERANCE


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("factor", ["a", "b"])
def test_entries_that_are_not_finite_are_refused(bad, factor):
    update = make_update("random", 20, 30, 3, 1.0, torch.float32, 0)
    getattr(update, factor)[1, 2] = bad
    with pytest.raises(ValueError, match="not finite"):
        svd_of_sum([(1.0, update)])
