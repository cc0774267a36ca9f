"""Our CPU LoRA operators against vLLM's own and against a loop over rows."""

import pytest
import torch

pytest.importorskip("vllm")

from vllm.lora.layers import LoRAMapping  # noqa: E402
from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

from verl_populora.engine import cpu_lora  # noqa: E402
from verl_populora.engine.cpu_lora import BlockedLora, TokenBlocks  # noqa: E402

RANK, INPUT, WIDTHS = 4, 24, (32, 16, 16)
IDS = [5, 7, None, 2, None]  # adapter in each slot; vLLM's own operators need the last one empty


def factors(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    a = tuple(torch.randn(len(IDS), 1, RANK, INPUT, generator=generator).to(dtype) for _ in WIDTHS)
    b = tuple(torch.randn(len(IDS), 1, width, RANK, generator=generator).to(dtype) for width in WIDTHS)
    for factor in (*a, *b):
        factor[-1] = 0
    return a, b


def apply(operators, adapter_ids, x, a, b, scale=1.0):
    """The operators' update on top of ones, for tokens of ``adapter_ids``; 0 is the base alone."""
    wrapper = operators(max_num_batched_tokens=1024, max_batches=128, device="cpu")
    mapping = LoRAMapping(tuple(adapter_ids), tuple(adapter_ids), is_prefill=True)
    wrapper.update_metadata(mapping, IDS, len(IDS) + 1, 100)
    y = torch.ones(len(adapter_ids), sum(WIDTHS), dtype=x.dtype)
    wrapper.add_lora_linear(y, x, a, b, scale, WIDTHS)
    return y


def mixtures():
    generator = torch.Generator().manual_seed(1)
    choices = torch.tensor([0, 2, 5, 7])
    yield "interleaved", choices[torch.randint(0, 4, (97,), generator=generator)].tolist()
    yield "one adapter", [7] * 33
    yield "one token", [2]
    yield "base only", [0] * 5
    yield "long prompt beside short ones", [5] * 200 + [7, 2, 5, 7] + [2] * 16
    yield "every adapter, no base", [2, 5, 7] * 11


@pytest.mark.parametrize(("name", "adapter_ids"), list(mixtures()))
def test_updates_equal_those_of_vllm_and_of_a_loop_over_rows(name, adapter_ids):
    a, b = factors()
    x = torch.randn(len(adapter_ids), INPUT, generator=torch.Generator().manual_seed(2))
    ours = apply(BlockedLora, adapter_ids, x, a, b, scale=0.5)
    expected = torch.ones_like(ours)
    for row, adapter_id in enumerate(adapter_ids):
        if adapter_id:
            slot = IDS.index(adapter_id)
            expected[row] += 0.5 * torch.cat([b[i][slot, 0] @ (a[i][slot, 0] @ x[row]) for i in range(len(WIDTHS))])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours, apply(PunicaWrapperCPU, adapter_ids, x, a, b, 0.5), rtol=1e-5, atol=1e-5)


def test_bfloat16_stays_within_its_rounding():
    a, b = factors(torch.bfloat16)
    adapter_ids = [2, 5, 0, 7] * 9
    x = torch.randn(len(adapter_ids), INPUT, generator=torch.Generator().manual_seed(3)).bfloat16()
    ours = apply(BlockedLora, adapter_ids, x, a, b).float()
    exact = apply(BlockedLora, adapter_ids, x.float(), [f.float() for f in a], [f.float() for f in b])
    assert float((ours - exact).norm() / exact.norm()) < 0.01


def test_a_diverged_adapter_spoils_its_own_tokens_only():
    a, b = factors()
    slot = IDS.index(7)
    for factor in (*a, *b):
        factor[slot] = float("nan")
    adapter_ids = [2, 7, 0, 5, 7]
    y = apply(BlockedLora, adapter_ids, torch.ones(5, INPUT), a, b)
    assert y.isnan().any(dim=1).tolist() == [i == 7 for i in adapter_ids]


def test_blocks_hold_tokens_of_one_adapter_and_every_token_once():
    slots = torch.tensor([1, -1, 0] * 20 + [1] * 3)
    blocks = TokenBlocks.build(slots)
    assert blocks.tokens.tolist() == [i for i, slot in enumerate(slots.tolist()) if slot >= 0]
    assert len(set(blocks.rows.tolist())) == len(blocks.tokens)
    assert blocks.sources[blocks.rows].equal(blocks.tokens)
    assert blocks.slots[blocks.rows // cpu_lora.BLOCK].equal(slots[blocks.tokens])


def test_vllm_on_a_cpu_takes_these_operators(monkeypatch):
    if not current_platform.is_cpu():
        pytest.skip("vLLM computes on another device here")
    from vllm.lora.punica_wrapper import get_punica_wrapper

    platform = type(current_platform)
    monkeypatch.setattr(platform, "get_punica_wrapper", platform.__dict__["get_punica_wrapper"])
    cpu_lora.install()
    assert type(get_punica_wrapper(16, max_batches=4, device="cpu")) is BlockedLora
