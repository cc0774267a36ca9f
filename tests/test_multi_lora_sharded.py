"""Two processes with FSDP2 over gloo: sharded adapters train, export and load like unsharded ones."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import Qwen2ForCausalLM

from tests.multi_lora_reference import (
    forward_loss,
    gradients,
    multi_lora_model,
    random_batch,
    random_model,
    rows_of,
)
from verl_populora.adapters.multi_lora import MultiLora

WORLD = 2
NAMES = ("teacher1", "teacher2", "student1", "student2")
LENGTHS = (9, 3, 12, 7, 12, 5, 8, 4)
# The ranks see different adapters, rank 1 none in its second micro-batch; student2 has no sample.
SLOTS = torch.tensor([[0, 2, 0, 2], [1, 1, -1, -1]])


def shard(model: Qwen2ForCausalLM, **options: Any) -> None:
    for layer in model.model.layers:
        fully_shard(layer, **options)
    fully_shard(model, **options)


def train(model: Qwen2ForCausalLM, multi: MultiLora, rows: list[torch.Tensor], loss_scale: int = 1) -> None:
    """Two AdamW steps of one micro-batch per entry of ``rows``.

    FSDP averages gradients over ranks, so a sum of losses over all rows needs ``loss_scale`` = ranks.
    """
    optimiser = torch.optim.AdamW([{"params": multi.parameters_of(name)} for name in NAMES], lr=1e-2)
    for step in range(2):
        batch = random_batch(LENGTHS, seed=step)
        for micro in rows:
            with multi.route(SLOTS.flatten()[micro], layout="padded"):
                loss = forward_loss(model, rows_of(batch, micro))
            (loss * loss_scale).backward()
        multi.clear_absent(SLOTS.flatten())
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)


def worker(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    train_bfloat16_base(rank)
    train_and_report(rank, folder)
    dist.destroy_process_group()


def train_bfloat16_base(rank: int) -> None:
    """Float32 adapters on a sharded bfloat16 base, gathered in bfloat16, kept gathered after a pass."""
    model = random_model().bfloat16()
    multi = MultiLora.inject(model, multi_lora_model(NAMES)[1].config, seed=0)
    before = multi.export("teacher1")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    shard(model, mp_policy=policy, reshard_after_forward=False)
    mine = torch.arange(4) + 4 * rank
    with torch.no_grad(), multi.route(SLOTS[rank], layout="padded"):
        forward_loss(model, rows_of(random_batch(LENGTHS), mine))
    assert all(isinstance(p, DTensor) and p.dtype is torch.float32 for p in multi.parameters_of("teacher1"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        train(model, multi, [mine])
    after = multi.export("teacher1")
    assert all(after[key].isfinite().all() and not torch.equal(after[key], before[key]) for key in after)


def train_and_report(rank: int, folder: str) -> None:
    """Float32 throughout, activations recomputed; rank 0 saves what the test compares."""
    model, multi = multi_lora_model(NAMES)
    initial = multi.export("student2")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    shard(model)
    mine = torch.arange(4) + 4 * rank
    train(model, multi, [mine[:2], mine[2:]], loss_scale=WORLD)

    batch = random_batch(LENGTHS, seed=9)
    with multi.route(SLOTS[rank], layout="padded"):
        (WORLD * forward_loss(model, rows_of(batch, mine))).backward()
    grads = {
        name: {
            key: gradient.full_tensor()
            for key, gradient in gradients(multi, name).items()
            if isinstance(gradient, DTensor)
        }
        for name in NAMES
    }
    exported = {name: multi.export(name) for name in NAMES}
    multi.load("teacher1", initial)
    with torch.no_grad(), multi.route(torch.tensor([0, 3, 0, -1]), layout="padded"):
        loss = forward_loss(model, rows_of(batch, torch.arange(4)))
    reloaded = multi.export("teacher1")
    if rank == 0:
        torch.save((exported, grads, reloaded, loss), f"{folder}/result.pt")


@pytest.mark.slow
def test_two_sharded_processes_train_like_one(tmp_path: Path) -> None:
    mp.spawn(worker, args=(str(tmp_path),), nprocs=WORLD)  # type: ignore[attr-defined]
    exported, grads, reloaded, loss = torch.load(tmp_path / "result.pt")

    model, multi = multi_lora_model(NAMES)
    initial = {name: multi.export(name) for name in NAMES}
    train(model, multi, [torch.arange(8)])
    for name in NAMES:
        torch.testing.assert_close(exported[name], multi.export(name), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(exported["student2"][key], initial["student2"][key]) for key in initial["student2"])

    batch = random_batch(LENGTHS, seed=9)
    with multi.route(SLOTS.flatten(), layout="padded"):
        forward_loss(model, batch).backward()
    for name in NAMES:
        for key, gradient in gradients(multi, name).items():
            if gradient is None:  # zero on every rank, so that all ranks reduce the same tensors
                assert not grads[name][key].any(), key
            else:
                torch.testing.assert_close(grads[name][key], gradient, rtol=1e-3, atol=1e-5)

    assert all(torch.equal(reloaded[key], initial["student2"][key]) for key in reloaded)
    multi.load("teacher1", initial["student2"])
    with torch.no_grad(), multi.route(torch.tensor([0, 3, 0, -1]), layout="padded"):
        torch.testing.assert_close(loss, forward_loss(model, rows_of(batch, torch.arange(4))))
