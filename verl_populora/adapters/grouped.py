"""The product of a linear layer with one low-rank update per group of rows, ``y = x W^T + s (x A_i^T)
B_i^T``.

Activations are never permuted: a group is a span of contiguous rows, an adapter may own several spans, and
every product runs on views. Rows of different adapters never meet in one matrix product, so an adapter that
has diverged to NaN spoils its own rows and gradients only (a dense product that masks foreign adapters with
zeros would spread it, since 0 * NaN is NaN).

Two implementations with one meaning: a loop of small matrix products over the spans, and ``grouped_mm``,
which runs all spans in one kernel. The loop works everywhere and wins on CPU; the kernel takes bfloat16 on
CUDA, where launching two products per span and layer would dominate.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import grouped_mm, linear

from verl_populora.adapters.routing import RowGroups

GROUPED_MM_ALIGNMENT = 8  # elements: its operands' rows must be multiples of 16 bytes


def multi_lora_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    lora_a: Sequence[Tensor],
    lora_b: Sequence[Tensor],
    groups: RowGroups,
    scaling: float,
) -> Tensor:
    """A frozen linear layer plus the low-rank update of each row's adapter.

    Args:
        x: (..., in_features), flattened to rows.
        weight, bias: (out_features, in_features) and (out_features,); they get no gradient.
        lora_a, lora_b: for each adapter (rank, in_features) and (out_features, rank), in the dtype of
            ``weight``.
        groups: which rows belong to which position in ``lora_a``.
        scaling: factor of the update, alpha / rank.

    Returns:
        (..., out_features). Adapters without a row get gradients of exactly zero.
    """
    if not lora_a:
        return linear(x, weight, bias)
    use_kernel = len(groups.cover) > 1 and kernel_applies(x, weight, rank=lora_a[0].shape[0])
    return _MultiLoraLinear.apply(x, weight, bias, groups, scaling, use_kernel, *lora_a, *lora_b)


def kernel_applies(x: Tensor, weight: Tensor, rank: int) -> bool:
    """Whether ``grouped_mm`` runs as one kernel for these operands."""
    aligned = all(size % GROUPED_MM_ALIGNMENT == 0 for size in (*weight.shape, rank))
    return aligned and x.is_cuda and weight.dtype is torch.bfloat16


class _MultiLoraLinear(torch.autograd.Function):
    """Fused so that updates accumulate into the base product and into its input gradient without
    temporaries."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        groups: RowGroups,
        scaling: float,
        use_kernel: bool,
        *factors: Tensor,
    ) -> Tensor:
        lora_a, lora_b = factors[: len(factors) // 2], factors[len(factors) // 2 :]
        rows = x.reshape(-1, x.shape[-1])
        out = linear(rows, weight, bias)
        add_updates = add_updates_grouped if use_kernel else add_updates_looped
        hidden = add_updates(out, rows, lora_a, lora_b, groups, scaling)
        ctx.save_for_backward(rows, weight, hidden, *factors)
        ctx.groups, ctx.scaling, ctx.use_kernel, ctx.shape = groups, scaling, use_kernel, x.shape
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, hidden, *factors = ctx.saved_tensors
        lora_a, lora_b = factors[: len(factors) // 2], factors[len(factors) // 2 :]
        grad = grad_out.reshape(-1, grad_out.shape[-1])
        grad_rows = torch.mm(grad, weight) if ctx.needs_input_grad[0] else None
        add_gradients = add_gradients_grouped if ctx.use_kernel else add_gradients_looped
        grad_a, grad_b = add_gradients(grad_rows, grad, rows, hidden, lora_a, lora_b, ctx.groups, ctx.scaling)
        grad_x = None if grad_rows is None else grad_rows.view(ctx.shape)
        return grad_x, None, None, None, None, None, *grad_a, *grad_b


def add_updates_looped(
    out: Tensor,
    rows: Tensor,
    lora_a: Sequence[Tensor],
    lora_b: Sequence[Tensor],
    groups: RowGroups,
    scaling: float,
) -> Tensor:
    """Add the updates to ``out`` (rows, out_features); return ``A x^T``, flat, a (rank, rows) block per span.

    The low-rank activations are kept transposed throughout: with few columns, CPU matrix products are
    markedly faster that way round.
    """
    rank = lora_a[0].shape[0]
    hidden = rows.new_zeros(rank * rows.shape[0])
    for start, stop, index in groups.spans:
        block = _block(hidden, rank, start, stop)
        torch.mm(lora_a[index], rows[start:stop].t(), out=block)
        out[start:stop].addmm_(block.t(), lora_b[index].t(), alpha=scaling)
    return hidden


def add_gradients_looped(
    grad_rows: Tensor | None,
    grad: Tensor,
    rows: Tensor,
    hidden: Tensor,
    lora_a: Sequence[Tensor],
    lora_b: Sequence[Tensor],
    groups: RowGroups,
    scaling: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """Add the updates' share to ``grad_rows`` (rows, in_features); return the gradients of all factors."""
    rank = lora_a[0].shape[0]
    grad_a = [torch.zeros_like(a) for a in lora_a]
    grad_b_t = [b.new_zeros(rank, b.shape[0]) for b in lora_b]
    for start, stop, index in groups.spans:
        grad_span = grad[start:stop]
        grad_hidden = torch.mm(lora_b[index].t(), grad_span.t())
        grad_b_t[index].addmm_(_block(hidden, rank, start, stop), grad_span, alpha=scaling)
        grad_a[index].addmm_(grad_hidden, rows[start:stop], alpha=scaling)
        if grad_rows is not None:
            grad_rows[start:stop].addmm_(grad_hidden.t(), lora_a[index], alpha=scaling)
    return grad_a, [b.t().contiguous() for b in grad_b_t]


def _block(hidden: Tensor, rank: int, start: int, stop: int) -> Tensor:
    return hidden[rank * start : rank * stop].view(rank, stop - start)


def add_updates_grouped(
    out: Tensor,
    rows: Tensor,
    lora_a: Sequence[Tensor],
    lora_b: Sequence[Tensor],
    groups: RowGroups,
    scaling: float,
) -> Tensor:
    """``add_updates_looped`` in two grouped products; returns ``x A^T``, (rows, rank)."""
    ends = groups.offsets(rows.device)
    hidden = grouped_mm(rows, _stack(lora_a, groups).transpose(1, 2), offs=ends)
    out.add_(grouped_mm(hidden, _stack(lora_b, groups).transpose(1, 2), offs=ends), alpha=scaling)
    return hidden


def add_gradients_grouped(
    grad_rows: Tensor | None,
    grad: Tensor,
    rows: Tensor,
    hidden: Tensor,
    lora_a: Sequence[Tensor],
    lora_b: Sequence[Tensor],
    groups: RowGroups,
    scaling: float,
) -> tuple[list[Tensor], list[Tensor]]:
    """``add_gradients_looped`` in four grouped products."""
    ends = groups.offsets(rows.device)
    grad = grad.contiguous()
    grad_hidden = grouped_mm(grad, _stack(lora_b, groups), offs=ends).mul_(scaling)
    if grad_rows is not None:
        grad_rows.add_(grouped_mm(grad_hidden, _stack(lora_a, groups), offs=ends))
    grad_a = _sum_by_adapter(grouped_mm(grad_hidden.t(), rows, offs=ends), groups, len(lora_a))
    grad_b = _sum_by_adapter(grouped_mm(grad.t(), hidden, offs=ends), groups, len(lora_b))
    return grad_a, [b.mul_(scaling) for b in grad_b]


def _stack(factors: Sequence[Tensor], groups: RowGroups) -> Tensor:
    """One factor a group, (groups, *factor shape), zeros for the base alone."""
    zero = torch.zeros_like(factors[0])
    return torch.stack([zero if index is None else factors[index] for index, _ in groups.cover])


def _sum_by_adapter(per_group: Tensor, groups: RowGroups, count: int) -> list[Tensor]:
    """Sum the gradients of the groups of each adapter; zeros for adapters without a group."""
    totals = list(per_group.new_zeros(count, *per_group.shape[1:]).unbind())
    for gradient, (index, _) in zip(per_group.unbind(), groups.cover, strict=True):
        if index is not None:
            totals[index].add_(gradient)
    return totals
