"""What the trainer sent and what the rollout engine holds, in a form that both sides can compute and compare.

Adapters that never reached the rollout, reached it under another id, by half, or with two projections swapped do not
crash a run, they make it train on samples of another policy. So after each synchronisation both sides state for every
adapter its version, its number of tensors and a checksum of names, shapes and bits; any difference stops the run.
"""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch

_MASK = (1 << 64) - 1


class DeliveryError(RuntimeError):
    """The rollout engine does not hold what the trainer believes it sent."""


@dataclass(frozen=True, slots=True)
class AdapterReceipt:
    """One adapter as one side sees it."""

    adapter_id: int
    seat: str
    version: int
    tensors: int
    checksum: int  # 64 bits, over names, shapes, dtypes and bit patterns
    bound: int  # tensors that the engine really uses in a layer; on the sending side all of them


def checksum(state: Mapping[str, torch.Tensor]) -> int:
    """64-bit checksum of a state dict, independent of its order and of the device.

    Bits are read as 16-bit integers and weighted by position, in arithmetic modulo 2**64, so that it runs where the
    tensors are; the sum of each tensor is tied to its name, so that two tensors of one shape can't change places
    unseen. Dtypes must have 2, 4 or 8 bytes (float16, bfloat16, float32, float64).
    """
    total = 0
    for name, tensor in state.items():
        bits = tensor.detach().contiguous().view(-1).view(torch.int16).to(torch.int64)
        weights = torch.arange(1, bits.numel() + 1, device=bits.device, dtype=torch.int64)
        weights = weights * 0x9E3779B1 + 0x85EBCA6B
        content = int((bits * weights).sum().item()) & _MASK
        label = zlib.crc32(f"{name}:{tuple(tensor.shape)}:{tensor.dtype}".encode())
        total = (total + (content ^ (label * 0x9E3779B97F4A7C15)) * (2 * label + 1)) & _MASK
    return total


def compare(sent: Mapping[int, AdapterReceipt], held: Mapping[int, AdapterReceipt], where: str) -> None:
    """Raise DeliveryError unless the engine called ``where`` holds exactly the adapters that were sent."""
    problems = []
    for adapter_id, ours in sorted(sent.items()):
        theirs = held.get(adapter_id)
        if theirs is None:
            problems.append(f"adapter {adapter_id}: version {ours.version} was sent, the engine has no such adapter")
            continue
        for field in ("seat", "version", "tensors", "checksum", "bound"):
            mine, other = getattr(ours, field), getattr(theirs, field)
            if mine != other:
                problems.append(f"adapter {adapter_id}: {field} is {mine} in the trainer, {other} in the engine")
    extra = sorted(set(held) - set(sent))
    if extra:
        problems.append(f"adapters {extra} are in the engine but not in the population")
    if problems:
        raise DeliveryError(
            f"the rollout engine {where} does not hold the trained adapters:\n  " + "\n  ".join(problems) + "\n"
            "Samples from it would come from other weights than those that are trained. Likely causes: two runs share "
            "one Ray cluster and engine name, a changed vLLM LoRA loader (see `python -m patches.verl_surface`), or "
            "target modules that vLLM does not support."
        )
