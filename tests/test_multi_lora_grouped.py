"""The grouped low-rank product: both implementations against autograd on a plain loop over rows."""

import pytest
import torch
from torch import Tensor

from verl_populora.adapters import grouped
from verl_populora.adapters.grouped import multi_lora_linear
from verl_populora.adapters.routing import Layout, Routing, RowGroups, Span

SLOTS = {
    "one adapter": [0] * 6,
    "sorted": [0, 0, 1, 1, 1, 2],
    "interleaved": [2, 0, 2, 1, 0, 2],
    "base at both ends": [-1, 1, 1, 0, -1, -1],
    "base between": [0, -1, -1, 2, -1, 0],
    "base only": [-1] * 6,
}


def problem(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
    """x (6, 2, 8), weight (16, 8), bias (16,), three pairs of rank 8."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    lora_a = [draw(8, 8).requires_grad_() for _ in range(3)]
    lora_b = [draw(16, 8).requires_grad_() for _ in range(3)]
    return draw(6, 2, 8).requires_grad_(), draw(16, 8), draw(16), lora_a, lora_b


def groups_of(slots: list[int]) -> RowGroups:
    routing = Routing.from_slots(slots, layout=Layout.PADDED, num_adapters=3, include_absent=True)
    return routing.groups((6, 2, 8))


def results(slots: list[int]) -> list[Tensor | None]:
    x, weight, bias, lora_a, lora_b = problem()
    out = multi_lora_linear(x, weight, bias, lora_a, lora_b, groups_of(slots), 0.5)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(factor.grad for factor in (*lora_a, *lora_b))]


def expected_results(slots: list[int]) -> list[Tensor | None]:
    x, weight, bias, lora_a, lora_b = problem()
    rows = []
    for row, slot in zip(x, slots, strict=True):
        y = row @ weight.T + bias
        rows.append(y if slot < 0 else y + 0.5 * row @ lora_a[slot].T @ lora_b[slot].T)
    out = torch.stack(rows)
    (out * torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(factor.grad for factor in (*lora_a, *lora_b))]


@pytest.mark.parametrize("use_kernel", [False, True], ids=["looped", "grouped_mm"])
@pytest.mark.parametrize("slots", SLOTS.values(), ids=SLOTS.keys())
def test_output_and_all_gradients(slots: list[int], use_kernel: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouped, "kernel_applies", lambda x, weight, rank: use_kernel)
    used = {"looped": 0, "grouped": 0}
    for name in used:
        original = getattr(grouped, f"add_updates_{name}")

        def counted(*args: object, name: str = name, original=original) -> Tensor:
            used[name] += 1
            return original(*args)

        monkeypatch.setattr(grouped, f"add_updates_{name}", counted)
    for got, want in zip(results(slots), expected_results(slots), strict=True):
        assert got is not None
        torch.testing.assert_close(got, torch.zeros_like(got) if want is None else want)
    several = len(groups_of(slots).cover) > 1
    assert used == {"looped": int(not (use_kernel and several)), "grouped": int(use_kernel and several)}


def test_gradients_against_finite_differences() -> None:
    x, weight, bias, lora_a, lora_b = problem(torch.float64)
    groups = groups_of(SLOTS["interleaved"])

    def function(x: Tensor, *factors: Tensor) -> Tensor:
        return multi_lora_linear(x, weight, bias, factors[:3], factors[3:], groups, 0.5)

    assert torch.autograd.gradcheck(function, (x, *lora_a, *lora_b))


def test_non_contiguous_input_and_missing_bias() -> None:
    x, weight, _, lora_a, lora_b = problem()
    strided = x.detach().repeat_interleave(2, dim=-1)[..., ::2].requires_grad_()
    out = multi_lora_linear(strided, weight, None, lora_a, lora_b, groups_of(SLOTS["sorted"]), 0.5)
    out.sum().backward()
    plain = multi_lora_linear(x, weight, None, lora_a, lora_b, groups_of(SLOTS["sorted"]), 0.5)
    plain.sum().backward()
    torch.testing.assert_close(out, plain)
    torch.testing.assert_close(strided.grad, x.grad)


def test_input_that_needs_no_gradient() -> None:
    x, weight, bias, lora_a, lora_b = problem()
    out = multi_lora_linear(x.detach(), weight, bias, lora_a, lora_b, groups_of(SLOTS["sorted"]), 0.5)
    out.sum().backward()
    assert all(a.grad is not None and a.grad.any() for a in lora_a)


@pytest.mark.parametrize("slots", [SLOTS["interleaved"], SLOTS["base between"]])
def test_grouped_mm_in_bfloat16(slots: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's own dtype on CUDA, here through the same operator on the CPU."""
    monkeypatch.setattr(grouped, "kernel_applies", lambda x, weight, rank: True)
    x, weight, bias, lora_a, lora_b = problem(torch.bfloat16)
    out = multi_lora_linear(x, weight, bias, lora_a, lora_b, groups_of(slots), 0.5)
    assert out.dtype is torch.bfloat16
    want = expected_results(slots)[0]
    assert want is not None
    torch.testing.assert_close(out.float(), want, rtol=0.05, atol=0.3)


def test_neighbouring_units_merge_into_spans() -> None:
    routing = Routing.from_slots([3, 3, -1, 0, 0, 0, 3], layout=Layout.PADDED, num_adapters=4)
    assert routing.adapters == (0, 3)
    assert routing.spans == (Span(0, 2, 1), Span(3, 6, 0), Span(6, 7, 1))
    groups = routing.groups((7, 5, 8))
    assert groups.spans == (Span(0, 10, 1), Span(15, 30, 0), Span(30, 35, 1))
    assert groups.cover == ((1, 10), (None, 15), (0, 30), (1, 35))
    assert groups.offsets(torch.device("cpu")).tolist() == [10, 15, 30, 35]
    assert routing.groups((7, 5, 16)) is groups, "worked out once for all layers"


@pytest.mark.parametrize(
    ("layout", "shape", "fits"),
    [
        (Layout.PADDED, (6, 4, 8), True),
        (Layout.PADDED, (6, 8), True),
        (Layout.PADDED, (1, 6, 8), False),
        (Layout.PADDED, (3, 2, 8), False),
        (Layout.PACKED, (1, 6, 8), True),
        (Layout.PACKED, (6, 8), True),
        (Layout.PACKED, (6, 4, 8), False),
        (Layout.PACKED, (1, 5, 8), False),
        (Layout.PACKED, (2, 3, 8), False),
    ],
)
def test_activations_must_have_the_routed_units(layout: Layout, shape: tuple[int, ...], fits: bool) -> None:
    routing = Routing.from_slots([0, 0, 1, 1, 1, 0], layout=layout, num_adapters=2)
    if fits:
        routing.groups(shape)
    else:
        with pytest.raises(ValueError, match=f"{layout} routing of 6 .*give one slot for each"):
            routing.groups(shape)


@pytest.mark.parametrize(
    ("slots", "message"),
    [([], "empty micro-batch"), ([0, 2], r"\[2\] are out of range"), ([-2, 0], r"\[-2\] are out of range")],
)
def test_unusable_slots_are_refused(slots: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Routing.from_slots(slots, layout=Layout.PADDED, num_adapters=2)
