"""vLLM's LoRA operators for a CPU, in batched matrix products over blocks of tokens of one adapter.

vLLM's own copy both factors for every token, which on a small model costs more than the model itself. Here tokens are
laid out in blocks that belong to one adapter, so that the factors are copied once a block and the products are batched.
A token never meets another adapter's factors, and a token without an adapter meets none.
"""

from typing import NamedTuple

import torch
from vllm.lora.layers import LoRAMapping
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU
from vllm.platforms import current_platform

BLOCK = 16  # tokens; smaller ones copy factors more often, larger ones hold more padding


class TokenBlocks(NamedTuple):
    """Tokens of one forward pass laid out in blocks of ``BLOCK`` rows of one adapter."""

    slots: torch.Tensor  # (blocks,) adapter slot of each block
    sources: torch.Tensor  # (blocks * BLOCK,) token in each row; padding repeats token 0 and is never read back
    tokens: torch.Tensor  # (tokens with an adapter,) ascending
    rows: torch.Tensor  # (tokens with an adapter,) row of each of ``tokens``

    @classmethod
    def build(cls, slots: torch.Tensor) -> "TokenBlocks":
        """Lay out tokens by their slots, (tokens,); -1 is the base alone."""
        tokens = (slots >= 0).nonzero().squeeze(1)
        ordered, order = slots[tokens].sort(stable=True)
        present, counts = ordered.unique_consecutive(return_counts=True)
        blocks = (counts + BLOCK - 1) // BLOCK
        # How far the padding of earlier adapters moves each adapter's tokens down.
        shift = (blocks.cumsum(0) - blocks) * BLOCK - (counts.cumsum(0) - counts)
        rows = torch.empty_like(tokens)
        rows[order] = torch.arange(len(order)) + shift.repeat_interleave(counts)
        sources = torch.zeros(int(blocks.sum()) * BLOCK, dtype=torch.long)
        sources[rows] = tokens
        return cls(present.repeat_interleave(blocks), sources, tokens, rows)


class BlockedLora(PunicaWrapperCPU):
    """vLLM's CPU operators with ``add_lora_linear``, where the time goes, done block by block."""

    def update_metadata(
        self,
        mapping: LoRAMapping,
        lora_index_to_id: list[int | None],
        max_loras: int,
        vocab_size: int,
        **kwargs,
    ) -> None:
        super().update_metadata(mapping, lora_index_to_id, max_loras, vocab_size, **kwargs)
        self._blocks = TokenBlocks.build(self.token_lora_indices)

    def add_lora_linear(
        self,
        y: torch.Tensor,
        x: torch.Tensor,
        lora_a_stacked: tuple[torch.Tensor, ...],
        lora_b_stacked: tuple[torch.Tensor, ...],
        scale: float,
        output_slices: tuple[int, ...],
        *,
        buffer: tuple[torch.Tensor, ...] | None = None,
        **kwargs,
    ) -> None:
        """Add ``scale * B A x`` of each token's adapter to ``y`` in place.

        Args:
            y: (tokens, sum of output_slices).
            x: (tokens, in_features).
            lora_a_stacked: for each slice of the output (slots, 1, rank, in_features).
            lora_b_stacked: for each slice (slots, 1, out_features of the slice, rank).
            output_slices: width of each slice.
            buffer: not used.
        """
        blocks = self._blocks
        if not len(blocks.tokens):
            return
        inputs = x.index_select(0, blocks.sources).view(-1, BLOCK, x.shape[-1])
        everyone = len(blocks.tokens) == len(y)
        start = 0
        for lora_a, lora_b, width in zip(lora_a_stacked, lora_b_stacked, output_slices, strict=True):
            hidden = torch.bmm(inputs, lora_a.squeeze(1).index_select(0, blocks.slots).transpose(1, 2))
            update = torch.bmm(hidden, lora_b.squeeze(1).index_select(0, blocks.slots).transpose(1, 2))
            update = update.view(-1, width).index_select(0, blocks.rows)
            target = y.narrow(1, start, width)
            if everyone:
                target.add_(update, alpha=scale)
            else:
                target.index_add_(0, blocks.tokens, update, alpha=scale)
            start += width


def install() -> None:
    """Make vLLM take these operators in this process, if it computes on a CPU; before it builds a model."""
    if current_platform.is_cpu():
        name = f"{BlockedLora.__module__}.{BlockedLora.__qualname__}"
        type(current_platform).get_punica_wrapper = classmethod(lambda cls: name)  # pyright: ignore
