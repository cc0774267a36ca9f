from dataclasses import replace

import pytest
import torch

from verl_populora.engine.delivery import AdapterReceipt, DeliveryError, checksum, compare


def state(seed: int = 0, dtype=torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    names = [f"layers.{i}.{part}.{factor}" for i in range(2) for part in ("gate", "up") for factor in "AB"]
    return {name: torch.randn(4, 6, generator=generator).to(dtype) for name in names}


def test_the_checksum_depends_on_content_not_on_order():
    tensors = state()
    assert checksum(tensors) == checksum(dict(reversed(tensors.items())))
    assert checksum(tensors) == checksum({name: t.clone() for name, t in tensors.items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_one_changed_bit_changes_the_checksum(dtype):
    tensors = state(dtype=dtype)
    changed = dict(tensors)
    last = changed["layers.1.up.B"].clone()
    last.view(torch.int16)[-1, -1] ^= 1
    changed["layers.1.up.B"] = last
    assert checksum(tensors) != checksum(changed)


def test_swapped_projections_change_the_checksum():
    tensors = state()
    swapped = dict(tensors)
    swapped["layers.0.gate.A"], swapped["layers.0.up.A"] = (
        tensors["layers.0.up.A"],
        tensors["layers.0.gate.A"],
    )
    assert checksum(tensors) != checksum(swapped)


def test_transposed_rows_change_the_checksum():
    tensors = state()
    changed = tensors | {"layers.0.gate.A": tensors["layers.0.gate.A"].flip(0)}
    assert checksum(tensors) != checksum(changed)


def test_zero_tensors_of_another_shape_are_told_apart():
    assert checksum({"a": torch.zeros(2, 3)}) != checksum({"a": torch.zeros(3, 2)})
    assert checksum({"a": torch.zeros(2, 3)}) != checksum({"b": torch.zeros(2, 3)})


SENT = AdapterReceipt(1, "teacher1", 3, 70, 42, 70)


def test_equal_receipts_pass():
    compare({1: SENT}, {1: SENT}, "0")


@pytest.mark.parametrize(
    ("held", "message"),
    [
        ({}, "no such adapter"),
        ({1: replace(SENT, version=2)}, "version is 3 in the trainer, 2"),
        ({1: replace(SENT, tensors=35)}, "tensors is 70 in the trainer, 35"),
        ({1: replace(SENT, checksum=43)}, "checksum"),
        ({1: replace(SENT, bound=0)}, "bound is 70 in the trainer, 0"),
        ({1: replace(SENT, seat="student1")}, "seat"),
        ({1: SENT, 2: replace(SENT, adapter_id=2)}, "not in the population"),
    ],
)
def test_every_difference_stops_the_run_with_its_name(held, message):
    with pytest.raises(DeliveryError, match=message):
        compare({1: SENT}, held, "0")
