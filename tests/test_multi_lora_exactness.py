"""Mixed micro-batches equal PEFT's mixed forward pass, and equal training each adapter alone."""

import copy
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from tests.multi_lora_reference import (
    BASE_NAME,
    IGNORED,
    TINY,
    PeftReference,
    forward_loss,
    gradients,
    multi_lora_model,
    random_batch,
    random_model,
    rows_of,
)
from verl_populora.adapters.multi_lora import MultiLora

NAMES = ("teacher1", "teacher2", "student1", "student2")
LENGTHS = (9, 3, 12, 7, 12, 5, 8)
SLOTS = torch.tensor([2, 0, 2, 0, 1, 2, -1])  # unequal numbers of samples, unsorted, one base row, slot 3 absent


def assert_same(actual: Mapping[str, Tensor | None], expected: Mapping[str, Tensor | None]) -> None:
    assert actual.keys() == expected.keys()
    for key, value in expected.items():
        got = actual[key]
        if value is None:
            assert got is None or not got.any(), key
        else:
            assert got is not None and value.any(), key
            torch.testing.assert_close(got, value, rtol=2e-5, atol=2e-6, msg=lambda m, k=key: f"{k}: {m}")


def backward(model: nn.Module, multi: MultiLora, batch: Mapping[str, Tensor], slots: Tensor) -> float:
    with multi.route(slots, layout="padded"):
        loss = forward_loss(model, batch)
    loss.backward()
    return loss.item()


@pytest.mark.parametrize(
    "targets",
    [
        {},
        {"target_modules": ("q_proj", "up_proj", "model.layers.1.mlp.down_proj")},
        {"target_modules": ("v_proj", "o_proj"), "layers_to_transform": (1,)},
        {"target_modules": r".*\.[02]\.(self_attn\.k|mlp\.gate)_proj"},
        {"exclude_modules": ("k_proj",), "layers_to_transform": (0, 2)},
    ],
    ids=["all", "names", "middle-layer", "regex", "exclude"],
)
def test_mixed_micro_batch_has_the_loss_and_gradients_of_peft(targets: dict) -> None:
    model, multi = multi_lora_model(NAMES, **targets)
    reference = PeftReference(multi, random_model())
    batch = random_batch(LENGTHS)

    loss = backward(model, multi, batch, SLOTS)
    with reference.route([BASE_NAME if slot < 0 else NAMES[slot] for slot in SLOTS.tolist()]):
        expected_loss = forward_loss(reference.model, batch)
    expected_loss.backward()

    assert loss == pytest.approx(expected_loss.item(), rel=1e-6)
    for name in NAMES:
        assert_same(gradients(multi, name), reference.gradients(name))


def test_mixed_gradients_equal_those_of_each_adapter_alone() -> None:
    model, multi = multi_lora_model(NAMES)
    alone, alone_multi = multi_lora_model(NAMES)
    batch = random_batch(LENGTHS)
    backward(model, multi, batch, SLOTS)
    for slot, name in enumerate(NAMES[:3]):
        rows = torch.eq(SLOTS, slot).nonzero().flatten()
        backward(alone, alone_multi, rows_of(batch, rows), torch.full((len(rows),), slot))
        assert_same(gradients(multi, name), gradients(alone_multi, name))
    assert all(parameter.grad is None for parameter in multi.parameters_of("student2"))


def test_only_adapters_get_gradients() -> None:
    model, multi = multi_lora_model(NAMES)
    backward(model, multi, random_batch(LENGTHS), SLOTS)
    of_adapters = {id(p) for name in NAMES for p in multi.parameters_of(name)}
    for key, parameter in model.named_parameters():
        assert parameter.requires_grad == (id(parameter) in of_adapters), key
        assert parameter.grad is None or id(parameter) in of_adapters, key


@pytest.mark.parametrize("schedule", ["sorted", "shuffled"])
def test_weights_after_several_steps_equal_training_each_adapter_alone(schedule: str) -> None:
    """Several AdamW steps; each adapter has its own schedule of learning rates, loss scale and clipping."""
    model, multi = multi_lora_model(NAMES)
    single_model, single = multi_lora_model(NAMES)
    optimiser, schedule_of_all = adamw(multi, NAMES)
    alone = {name: adamw(single, [name]) for name in NAMES[:3]}
    generator = torch.Generator().manual_seed(5)
    for step in range(4):
        slots = torch.tensor([0, 0, 0, 1, 2, 2, 2, 2] if step != 2 else [0, 2, 2, 2, 2, 2, 2, 2])
        if schedule == "shuffled":
            slots = slots[torch.randperm(len(slots), generator=generator)]
        lengths = torch.randint(3, 13, (len(slots),), generator=generator).tolist()
        batch = random_batch(lengths, seed=step)
        for rows in torch.arange(len(slots)).split(4):  # two micro-batches a step
            backward(model, multi, rows_of(batch, rows), slots[rows])
        for slot in slots.unique().tolist():
            rows = (slots == slot).nonzero().flatten()
            backward(single_model, single, rows_of(batch, rows), torch.full((len(rows),), slot))
            apply_step(single, alone[NAMES[slot]][0], batch, slots, only=slot)
        apply_step(multi, optimiser, batch, slots)
        for scheduler in (schedule_of_all, *(scheduler for _, scheduler in alone.values())):
            scheduler.step()
    for name in NAMES[:3]:
        assert_same(multi.export(name), single.export(name))


def adamw(multi: MultiLora, names: Sequence[str]) -> tuple[torch.optim.AdamW, LambdaLR]:
    """One optimiser for ``names``, each with its own base rate and decay."""
    speeds = [multi.slot(name) + 1 for name in names]
    groups = [
        {"params": multi.parameters_of(name), "lr": 1e-2 / speed} for name, speed in zip(names, speeds, strict=True)
    ]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.1)
    return optimiser, LambdaLR(optimiser, [lambda step, s=speed: (1 + step) ** -s for speed in speeds])


def apply_step(
    multi: MultiLora,
    optimiser: torch.optim.Optimizer,
    batch: Mapping[str, Tensor],
    slots: Tensor,
    only: int | None = None,
) -> None:
    """Token-mean loss, clipping and AdamW for each adapter (or ``only`` one) over its own tokens."""
    multi.clear_absent(slots)
    for slot in slots.unique().tolist() if only is None else [only]:
        parameters = multi.parameters_of(multi.config.names[slot])
        tokens = (batch["labels"][slots == slot][:, 1:] != IGNORED).sum()
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad /= tokens
        nn.utils.clip_grad_norm_(parameters, 0.3)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def test_members_without_samples_stay_bit_identical_with_their_optimiser_state() -> None:
    model, multi = multi_lora_model(NAMES)
    optimiser, _ = adamw(multi, NAMES)
    batch = random_batch(LENGTHS)
    backward(model, multi, batch, torch.tensor([0, 1, 2, 3, 0, 1, 2]))
    apply_step(multi, optimiser, batch, torch.tensor([0, 1, 2, 3, 0, 1, 2]))
    absent = multi.parameters_of("teacher2")
    before = copy.deepcopy([(p.detach(), optimiser.state[p]) for p in absent])

    slots = torch.tensor([0, 3, 2, 3, 0, 0, 2])
    backward(model, multi, batch, slots)
    apply_step(multi, optimiser, batch, slots)

    for (value, state), parameter in zip(before, absent, strict=True):
        assert torch.equal(value, parameter)
        assert state.keys() == optimiser.state[parameter].keys()
        assert all(torch.equal(state[key], optimiser.state[parameter][key]) for key in state)
    assert any(not torch.equal(a, b) for a, b in zip(absent, multi.parameters_of("teacher1"), strict=True)), (
        "the other members did train"
    )


def test_clear_absent_drops_stale_gradients_of_absent_adapters_only() -> None:
    model, multi = multi_lora_model(NAMES)
    backward(model, multi, random_batch(LENGTHS), SLOTS)
    multi.clear_absent([0, 2])
    has_gradient = {name: [p.grad is not None for p in multi.parameters_of(name)] for name in NAMES}
    assert all(has_gradient["teacher1"]) and all(has_gradient["student1"])
    assert not any(has_gradient["teacher2"]) and not any(has_gradient["student2"])


def test_packed_tokens_have_the_gradients_of_padded_rows() -> None:
    model, multi = multi_lora_model(NAMES)
    packed_model, packed_multi = multi_lora_model(NAMES)
    batch = random_batch(LENGTHS)
    backward(model, multi, batch, SLOTS)

    lengths = torch.tensor(LENGTHS)
    kept = batch["attention_mask"].bool()
    sequence = torch.repeat_interleave(torch.arange(len(LENGTHS)), lengths)
    position_ids = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    tokens = torch.arange(len(sequence))
    visible = (sequence[:, None] == sequence[None]) & (tokens[:, None] >= tokens[None])
    with packed_multi.route(SLOTS[sequence], layout="packed"):
        logits = packed_model(
            input_ids=batch["input_ids"][kept][None],
            position_ids=position_ids,
            attention_mask=visible[None, None],
            use_cache=False,
        ).logits
    labels = batch["labels"][kept]
    is_target = (labels != IGNORED) & (position_ids[0] > 0)
    log_probs = logits[0].log_softmax(-1)
    loss = -sum(log_probs[t - 1, labels[t]] for t in is_target.nonzero().flatten().tolist())
    assert isinstance(loss, Tensor)
    loss.backward()

    for name in NAMES[:3]:
        assert_same(gradients(packed_multi, name), gradients(multi, name))


@pytest.mark.parametrize("order", ["before", "after"])
def test_checkpointed_layers_recompute_under_the_routing_of_their_forward_pass(order: str) -> None:
    """Two micro-batches with different routings, backward later and outside of both."""
    model, multi = multi_lora_model(NAMES)
    first, second = random_batch(LENGTHS, seed=1), random_batch(LENGTHS, seed=2)
    flipped = SLOTS.flip(0)
    backward(model, multi, first, SLOTS)
    backward(model, multi, second, flipped)

    checkpointed = random_model()
    if order == "before":
        checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    config = multi.config
    recomputed = MultiLora.inject(checkpointed, config, seed=3)
    if order == "after":
        checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    for name in NAMES:
        recomputed.load(name, multi.export(name))
    losses = []
    for batch, slots in ((first, SLOTS), (second, flipped)):
        with recomputed.route(slots, layout="padded"):
            losses.append(forward_loss(checkpointed, batch))
    losses[0].backward(retain_graph=True)
    losses[1].backward()
    for name in NAMES:
        assert_same(gradients(recomputed, name), gradients(multi, name))


def test_autocast_computes_in_bfloat16_and_keeps_float32_gradients() -> None:
    model, multi = multi_lora_model(NAMES)
    exact, exact_multi = multi_lora_model(NAMES)
    batch = random_batch(LENGTHS)
    backward(exact, exact_multi, batch, SLOTS)
    seen = []
    layer = multi.layers["model.layers.1.mlp.up_proj"]
    layer.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16), multi.route(SLOTS, layout="padded"):
        loss = forward_loss(model, batch)
    loss.backward()
    assert seen == [torch.bfloat16]
    for name in NAMES[:3]:
        got = torch.cat([p.grad.flatten() for p in multi.parameters_of(name) if p.grad is not None])
        want = torch.cat([p.grad.flatten() for p in exact_multi.parameters_of(name) if p.grad is not None])
        assert got.dtype is torch.float32
        assert torch.nn.functional.cosine_similarity(got, want, dim=0) > 0.999
        assert got.norm() == pytest.approx(want.norm().item(), rel=0.03)


def test_bfloat16_base_trains_float32_adapters() -> None:
    model = random_model().bfloat16()
    multi = MultiLora.inject(model, multi_lora_model(NAMES)[1].config, seed=0)
    backward(model, multi, random_batch(LENGTHS), SLOTS)
    for name in NAMES[:3]:
        for parameter in multi.parameters_of(name):
            assert parameter.dtype is torch.float32
            assert parameter.grad is not None and parameter.grad.dtype is torch.float32


def test_a_diverged_adapter_spoils_its_own_rows_and_gradients_only() -> None:
    model, multi = multi_lora_model(NAMES)
    healthy, healthy_multi = multi_lora_model(NAMES)
    with torch.no_grad():
        for parameter in multi.parameters_of("student1"):
            parameter.fill_(float("nan"))
    batch = random_batch(LENGTHS)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    losses = []
    for module, handle in ((model, multi), (healthy, healthy_multi)):
        with handle.route(SLOTS, layout="padded"):
            logits = module(**inputs, use_cache=False).logits
        per_row = torch.nn.functional.cross_entropy(
            logits[:, :-1].transpose(1, 2), batch["labels"][:, 1:], reduction="none", ignore_index=IGNORED
        ).sum(1)
        per_row.sum().backward()
        losses.append(per_row.detach())
    assert losses[0].isnan().tolist() == (SLOTS == 2).tolist()
    for name in ("teacher1", "teacher2"):
        assert_same(gradients(multi, name), gradients(healthy_multi, name))


def test_base_only_is_the_bare_model() -> None:
    model, multi = multi_lora_model(NAMES)
    batch = random_batch(LENGTHS)
    bare = random_model()
    with torch.no_grad():
        expected = forward_loss(bare, batch)
        with multi.base_only():
            assert torch.equal(forward_loss(model, batch), expected)
        with multi.route(torch.full((len(LENGTHS),), -1), layout="padded"):
            assert torch.equal(forward_loss(model, batch), expected)
    assert TINY.num_hidden_layers * 7 == len(multi.layers)
