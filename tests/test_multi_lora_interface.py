"""Injection, selection of modules, PEFT state dicts and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import save_file
from torch import nn

from tests.multi_lora_reference import TINY, forward_loss, multi_lora_model, random_batch, random_model
from verl_populora.adapters.multi_lora import MultiLora, MultiLoraConfig

NAMES = ("p1", "layers", "student1")  # "layers" is a part of every module name
LENGTHS = (6, 9, 4)
Q_PROJ = "base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    "choice",
    [
        {"target_modules": "all-linear"},
        {"target_modules": "all-linear", "exclude_modules": ("down_proj", "model.layers.0.mlp.up_proj")},
        {"target_modules": ("q_proj", "v_proj"), "layers_to_transform": (0, 2)},
        {"target_modules": r".*mlp\.(gate|up)_proj", "exclude_modules": r".*layers\.1\..*"},
    ],
)
def test_keys_and_shapes_are_those_of_peft(choice: dict[str, Any]) -> None:
    _, multi = multi_lora_model(NAMES, **choice)
    as_lists = {key: list(value) if isinstance(value, tuple) else value for key, value in choice.items()}
    peft_model = get_peft_model(random_model(), LoraConfig(r=4, task_type="CAUSAL_LM", **as_lists))  # type: ignore
    expected = {
        key.replace(".default.weight", ".weight"): parameter.shape
        for key, parameter in peft_model.named_parameters()
        if ".lora_" in key
    }
    for name in NAMES:
        assert {key: value.shape for key, value in multi.export(name).items()} == expected


def test_exported_folder_is_an_ordinary_peft_adapter(tmp_path: Path) -> None:
    model, multi = multi_lora_model(NAMES, target_modules=("q_proj", "down_proj"), layers_to_transform=(1, 2))
    batch = random_batch(LENGTHS)
    for slot, name in enumerate(NAMES):
        folder = tmp_path / name
        folder.mkdir()
        save_file(multi.export(name), folder / "adapter_model.safetensors")
        (folder / "adapter_config.json").write_text(json.dumps(multi.peft_config(name)))
        loaded = PeftModel.from_pretrained(random_model(), folder)
        with torch.no_grad(), multi.route(torch.full((3,), slot), layout="padded"):
            torch.testing.assert_close(forward_loss(model, batch), forward_loss(loaded, batch))


def test_export_is_a_copy_and_load_restores_it() -> None:
    _, multi = multi_lora_model(NAMES)
    saved = multi.export("p1")
    other = multi.export("student1")
    multi.load("p1", other)
    assert all(torch.equal(value, other[key]) for key, value in multi.export("p1").items())
    assert not torch.equal(saved[Q_PROJ], other[Q_PROJ])
    multi.load("p1", {key: value.double() for key, value in saved.items()})
    assert all(torch.equal(value, saved[key]) for key, value in multi.export("p1").items())


def rename(state: dict[str, torch.Tensor]) -> None:
    state["typo"] = state.pop(Q_PROJ)


def shorten(state: dict[str, torch.Tensor]) -> None:
    state[Q_PROJ] = state[Q_PROJ][:2]


@pytest.mark.parametrize(
    ("damage", "message"),
    [(rename, f"missing {Q_PROJ}; unexpected typo"), (shorten, r"has shape \(2, 24\), expected \(4, 24\)")],
)
def test_unfitting_state_dicts_are_refused_and_change_nothing(
    damage: Callable[[dict[str, torch.Tensor]], None], message: str
) -> None:
    _, multi = multi_lora_model(NAMES)
    before = multi.export("p1")
    state = multi.export("student1")
    damage(state)
    with pytest.raises(ValueError, match=message):
        multi.load("p1", state)
    assert all(torch.equal(value, before[key]) for key, value in multi.export("p1").items())


def test_base_checkpoints_load_unchanged() -> None:
    model, multi = multi_lora_model(NAMES)
    bare = random_model(seed=7)
    missing, unexpected = model.load_state_dict(bare.state_dict(), strict=False)
    assert not unexpected
    assert missing and all(".lora_" in key for key in missing)
    batch = random_batch(LENGTHS)
    with torch.no_grad(), multi.base_only():
        assert torch.equal(forward_loss(model, batch), forward_loss(bare, batch))


def test_founders_are_the_base_and_depend_on_seed_name_and_module_alone() -> None:
    def state(seed: int, names: tuple[str, ...], **choice: Any) -> dict[str, torch.Tensor]:
        config = MultiLoraConfig(names, rank=4, alpha=8, **choice)
        return MultiLora.inject(random_model(), config, seed=seed).export("student1")

    first = state(0, NAMES)
    again = state(0, ("student1", "other"), target_modules=("q_proj",), layers_to_transform=(1,))
    assert torch.equal(first[Q_PROJ], again[Q_PROJ])
    assert not torch.equal(first[Q_PROJ], state(1, NAMES)[Q_PROJ])
    assert not torch.equal(first[Q_PROJ], first[Q_PROJ.replace("layers.1", "layers.2")])
    drawn = torch.cat([v.flatten() for k, v in first.items() if "lora_A" in k and v.shape[1] == 24])
    bound = 24**-0.5
    assert drawn.abs().max() <= bound
    assert drawn.std() == pytest.approx(bound / 3**0.5, rel=0.05), "uniform on [-bound, bound]"
    assert not any(value.any() for key, value in first.items() if "lora_B" in key)


def test_meta_models_can_be_injected() -> None:
    with torch.device("meta"):
        model = random_model()
    multi = MultiLora.inject(model, MultiLoraConfig(NAMES, rank=4, alpha=8), seed=0)
    assert all(parameter.is_meta for parameter in multi.parameters_of("p1"))
    with pytest.raises(RuntimeError, match="meta device"):
        multi.load("p1", multi_lora_model(NAMES)[1].export("p1"))


def test_forward_without_a_routing_is_refused() -> None:
    model, multi = multi_lora_model(NAMES)
    batch = random_batch(LENGTHS)
    with pytest.raises(RuntimeError, match="no routing is in force"):
        forward_loss(model, batch)
    with multi.route(torch.tensor([0, 1, 2]), layout="padded"):
        forward_loss(model, batch)
    with pytest.raises(RuntimeError, match="no routing is in force"):
        forward_loss(model, batch)


def test_unroutable_recomputation_is_refused() -> None:
    model, multi = multi_lora_model(NAMES)
    model.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(RuntimeError, match="'use_reentrant': False"):
        multi.route(torch.tensor([0]), layout="padded")


def test_trainable_base_weights_are_refused() -> None:
    model, multi = multi_lora_model(NAMES)
    model.requires_grad_(True)
    with (
        pytest.raises(RuntimeError, match="frozen base only"),
        multi.route(torch.tensor([0, 1, 2]), layout="padded"),
    ):
        forward_loss(model, random_batch(LENGTHS))


@pytest.mark.parametrize(
    ("slots", "layout", "message"),
    [
        (torch.tensor([[0, 1]]), "padded", "vector of integers"),
        (torch.tensor([0.0]), "padded", "vector of integers"),
        (torch.tensor([True]), "padded", "vector of integers"),
        (torch.tensor([3]), "padded", "out of range"),
        (torch.tensor([0]), "ragged", "not a valid Layout"),
    ],
)
def test_unusable_routes_are_refused(slots: torch.Tensor, layout: str, message: str) -> None:
    _, multi = multi_lora_model(NAMES)
    with pytest.raises(ValueError, match=message):
        multi.route(slots, layout=layout)


def test_unknown_adapters_are_refused() -> None:
    _, multi = multi_lora_model(NAMES)
    for call in (multi.slot, multi.export, multi.parameters_of, multi.peft_config):
        with pytest.raises(KeyError, match="no adapter named 'p9'"):
            call("p9")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"target_modules": ("wq",)}, "no module matches"),
        ({"target_modules": ("q_proj", "wq")}, "'wq' matches nothing"),
        ({"layers_to_transform": (1, 3)}, "layer 3 of layers_to_transform"),
        ({"target_modules": ("embed_tokens",)}, "embed_tokens is a Embedding"),
        ({"exclude_modules": r".*"}, "no module matches"),
    ],
)
def test_targets_that_bind_nothing_are_refused(choice: dict[str, Any], message: str) -> None:
    model = random_model()
    with pytest.raises(ValueError, match=message):
        MultiLora.inject(model, MultiLoraConfig(NAMES, rank=4, alpha=8, **choice), seed=0)
    assert all(parameter.requires_grad for parameter in model.parameters()), "refused before any change"


def test_a_second_injection_is_refused() -> None:
    model, multi = multi_lora_model(NAMES)
    with pytest.raises(ValueError, match="carries adapters already"):
        MultiLora.inject(model, multi.config, seed=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"names": ()}, "adapter names"),
        ({"names": ("a", "a")}, "adapter names"),
        ({"names": ("1",)}, "'1' is no usable adapter name"),
        ({"names": ("p.1",)}, "'p.1' is no usable adapter name"),
        ({"names": ("keys",)}, "'keys' is no usable adapter name"),
        ({"rank": 0}, "rank"),
        ({"alpha": 0.0}, "alpha"),
        ({"target_modules": ()}, "target_modules is empty"),
        ({"layers_to_transform": ()}, "layers_to_transform is empty"),
        ({"target_modules": ".*q_proj", "layers_to_transform": (1,)}, "no effect on a regular expression"),
    ],
)
def test_bad_configurations_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiLoraConfig(**{"names": NAMES, "rank": 4, "alpha": 8.0, **fields})


def test_the_output_head_is_adapted_only_when_named() -> None:
    untied = type(TINY)(**{**TINY.to_dict(), "tie_word_embeddings": False})
    names = MultiLora.inject(random_model(untied), MultiLoraConfig(NAMES, 4, 8.0), seed=0).layers
    assert len(names) == 7 * TINY.num_hidden_layers
    model = random_model(untied)
    multi = MultiLora.inject(model, MultiLoraConfig(NAMES, 4, 8.0, target_modules=("lm_head",)), seed=0)
    assert list(multi.layers) == ["lm_head"]
    assert isinstance(model.lm_head, nn.Linear)
    with multi.route(torch.tensor([0, 1, 2]), layout="padded"):
        forward_loss(model, random_batch(LENGTHS)).backward()
    assert all(parameter.grad is not None for parameter in multi.parameters_of("student1"))
