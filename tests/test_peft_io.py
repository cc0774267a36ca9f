"""PEFT folders in and out, against PEFT itself."""

import json
import re
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from verl_populora.adapters.peft_io import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    UnsupportedAdapterError,
    from_state_dict,
    read_peft,
    to_state_dict,
    write_peft,
)
from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution.operators.base import inherit
from verl_populora.evolution.recompression import FactorSpec


def base_model() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=11,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return LlamaForCausalLM(config)


def save_adapter(folder: Path, **options) -> PeftModel:
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM"}
    model = get_peft_model(base_model(), LoraConfig(**{**settings, **options}))
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data.normal_(std=0.05)
    model.save_pretrained(str(folder))
    return model


def update_of(model: PeftModel, module: str) -> torch.Tensor:
    layer = model.get_submodule(f"base_model.model.{module}")
    return layer.get_delta_weight("default")  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_rslora": True},
        {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.3.mlp.down_proj": 20}},
        {"layers_to_transform": [4, 5, 10]},
    ],
)
def test_every_module_has_the_update_that_peft_computes(tmp_path, options):
    model = save_adapter(tmp_path, **options)
    adapter = read_peft(tmp_path)
    assert adapter.config["lora_alpha"] == 8
    assert len(adapter.weights.modules) == (6 if "layers_to_transform" in options else 22)
    for name, module in adapter.weights.modules.items():
        assert torch.allclose(module.scaling * module.b @ module.a, update_of(model, name), atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}, {"layers_to_transform": [4, 5, 10]}])
@pytest.mark.parametrize("keep_config", [True, False])
def test_peft_loads_what_was_written_as_the_same_model(tmp_path, options, keep_config):
    model = save_adapter(tmp_path / "parent", **options)
    adapter = read_peft(tmp_path / "parent")
    write_peft(tmp_path / "copy", adapter.weights, "some/base", adapter.config if keep_config else None)
    loaded = PeftModel.from_pretrained(base_model(), str(tmp_path / "copy"))
    tokens = torch.arange(12).view(1, -1)
    with torch.no_grad():
        expected = model.eval()(tokens).logits
        assert torch.allclose(loaded.eval()(tokens).logits, expected, atol=1e-5)
        assert not torch.allclose(base_model().eval()(tokens).logits, expected, atol=1e-3)
    adapted = {name for name, _ in loaded.named_parameters() if "lora_A" in name}
    assert len(adapted) == len(adapter.weights.modules)


def test_configuration_metadata_dtype_and_bits_survive_a_round_trip(tmp_path):
    save_adapter(tmp_path / "parent", lora_dropout=0.25)
    adapter = read_peft(tmp_path / "parent")
    halved = AdapterWeights(
        {
            name: LoraFactors(module.a.bfloat16(), module.b.bfloat16(), module.scaling)
            for name, module in adapter.weights.modules.items()
        },
        4,
        8.0,
    )
    write_peft(tmp_path / "copy", halved, "some/base", adapter.config, {"note": "kept"})
    again = read_peft(tmp_path / "copy")
    assert again.metadata == {"format": "pt", "note": "kept"}
    assert again.base_model_name == "some/base"
    changed = {"base_model_name_or_path"}
    assert {key: again.config[key] for key in adapter.config if key not in changed} == {
        key: value for key, value in adapter.config.items() if key not in changed
    }
    for name, module in halved.modules.items():
        assert torch.equal(again.weights.modules[name].a, module.a)
        assert torch.equal(again.weights.modules[name].b, module.b)
    assert list(again.weights.modules)[0:3] == [
        "model.layers.0.mlp.down_proj",
        "model.layers.0.self_attn.q_proj",
        "model.layers.1.mlp.down_proj",
    ]


def test_state_dicts_have_pefts_names_and_come_back(tmp_path):
    save_adapter(tmp_path)
    weights = read_peft(tmp_path).weights
    state = to_state_dict(weights)
    assert set(state) == set(load_file(tmp_path / WEIGHTS_FILE))
    again = from_state_dict(state, rank=4, alpha=8.0)
    assert list(again.modules) == list(weights.modules)
    assert all(again.modules[name].scaling == 2.0 for name in again.modules)
    with pytest.raises(ValueError, match="has rank 4, expected 8"):
        from_state_dict(state, rank=8, alpha=8.0)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_dora": True}, "DoRA adds a trained magnitude"),
        ({"bias": "lora_only"}, "biases were trained"),
        ({"modules_to_save": ["lm_head"]}, "whole modules were trained"),
        ({"init_lora_weights": "olora"}, "altered the base"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "not LoRA factors of linear layers"),
        ({"trainable_token_indices": [1, 2]}, "token embeddings were trained"),
    ],
)
def test_adapters_of_other_kinds_are_refused_with_the_reason(tmp_path, options, reason):
    save_adapter(tmp_path, **options)
    with pytest.raises(UnsupportedAdapterError, match=reason):
        read_peft(tmp_path)


def test_folders_that_are_no_adapters_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=re.escape(CONFIG_FILE)):
        read_peft(tmp_path)
    save_adapter(tmp_path)
    path = tmp_path / CONFIG_FILE
    config = json.loads(path.read_text())
    for broken, message in (
        ("{", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        (json.dumps({**config, "peft_type": "LOHA"}), "peft_type is LOHA"),
        (json.dumps({**config, "r": 0}), "r is 0"),
        (json.dumps({**config, "r": 16}), "has rank 4, but .* says 16"),
    ):
        path.write_text(broken)
        with pytest.raises(ValueError, match=message):
            read_peft(tmp_path)
    path.write_text(json.dumps(config))
    (tmp_path / WEIGHTS_FILE).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(FileNotFoundError, match="safe_serialization=True"):
        read_peft(tmp_path)


def test_a_missing_factor_is_named(tmp_path):
    save_adapter(tmp_path)
    state = load_file(tmp_path / WEIGHTS_FILE)
    del state["base_model.model.model.layers.7.mlp.down_proj.lora_B.weight"]
    save_file(state, tmp_path / WEIGHTS_FILE)
    with pytest.raises(ValueError, match="layers.7.mlp.down_proj has lora_A only"):
        read_peft(tmp_path)


def test_modules_of_mixed_rank_are_not_written_under_one_rank(tmp_path):
    save_adapter(tmp_path / "parent", rank_pattern={"q_proj": 2})
    mixed = read_peft(tmp_path / "parent").weights
    with pytest.raises(ValueError, match="bring all modules to one rank"):
        write_peft(tmp_path / "copy", mixed, "some/base")
    assert not (tmp_path / "copy").exists()
    spec = FactorSpec(4, 8.0, torch.float32)
    even = AdapterWeights({name: inherit(module, spec) for name, module in mixed.modules.items()}, 4, 8.0)
    write_peft(tmp_path / "copy", even, "some/base")
    for name, module in read_peft(tmp_path / "copy").weights.modules.items():
        before = mixed.modules[name]
        assert torch.allclose(module.scaling * module.b @ module.a, before.scaling * before.b @ before.a, atol=1e-6)
