"""The memory plan against measured tensors of small real models on the CPU.

Parameters, gradients and optimiser state are exact; saved activations agree within 1 %, which leaves room for position
embeddings.
"""

import json
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from azr_overrides.config import compose
from azr_overrides.memory import adapters_of, model_on_meta, plan_of, settings_of, shape_of, shortfalls
from verl_populora import doctor
from verl_populora.adapters.multi_lora import Layout, MultiLora, MultiLoraConfig
from verl_populora.memory import FLOAT32, GIB, Settings, engine_rank, logit_copies, plan

TOLERANCE = 0.01
ROWS, LENGTH = 2, 192
TOKENS = ROWS * LENGTH
ADAPTERS = MultiLoraConfig(names=("teacher1", "student1"), rank=8, alpha=16)
SHAPES = {  # hidden, intermediate, layers, heads, vocabulary
    "small": (128, 384, 3, 8, 199),
    "wide": (256, 512, 2, 4, 311),
}
KINDS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "llama": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 48}),
}


def build(kind: str, sizes: str, dtype: torch.dtype):
    """A model with random weights."""
    config_class, model_class, more = KINDS[kind]
    hidden, intermediate, layers, heads, vocabulary = SHAPES[sizes]
    config = config_class(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        attn_implementation="sdpa",
        **more,
    )
    return model_class(config).to(dtype)


def saved_by(model: torch.nn.Module, run) -> int:
    """Bytes of the storages that autograd keeps during ``run``, the model's parameters not counted."""
    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    seen = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(seen.values())


def saved_activations(model, lora: MultiLora, *, checkpointing: bool) -> int:
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    ids = torch.arange(TOKENS).remainder(model.config.vocab_size).view(ROWS, LENGTH)
    kept = []
    with lora.route(torch.tensor([0, 1]), layout=Layout.PADDED):
        size = saved_by(model, lambda: kept.append(model.model(input_ids=ids, use_cache=False)))
    return size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_parameters_gradients_and_moments_are_exact(kind, sizes, dtype):
    model = build(kind, sizes, dtype)
    shape = shape_of(model, ADAPTERS)
    assert shape.parameters * dtype.itemsize == sum(p.nbytes for p in model.parameters())
    lora = MultiLora.inject(model, ADAPTERS, seed=0)
    trained = [p for name in ADAPTERS.names for p in lora.parameters_of(name)]
    optimizer = torch.optim.AdamW(trained, fused=True)
    with lora.route(torch.tensor([0, 1]), layout=Layout.PADDED):
        model(input_ids=torch.zeros(2, 4, dtype=torch.long)).logits.float().sum().backward()
    optimizer.step()
    expected = len(ADAPTERS.names) * shape.adapter_parameters(ADAPTERS.rank) * FLOAT32
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert sum(p.nbytes for p in trained) == expected
    assert sum(p.grad.nbytes for p in model.parameters() if p.grad is not None) == expected
    assert sum(moment.nbytes for moment in moments) == 2 * expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("sizes", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_saved_activations(kind, sizes, dtype):
    measured = {}
    for checkpointing in (False, True):
        model = build(kind, sizes, dtype)
        shape = shape_of(model, ADAPTERS)
        lora = MultiLora.inject(model, ADAPTERS, seed=0)
        measured[checkpointing] = saved_activations(model, lora, checkpointing=checkpointing)
    # Without FSDP2 factors are cast by each layer, and the casts are kept: with it they are gathered parameters.
    casts = len(ADAPTERS.names) * shape.adapter_parameters(ADAPTERS.rank) * dtype.itemsize * (dtype.itemsize < FLOAT32)
    for checkpointing, size in measured.items():
        expected = shape.saved(TOKENS, dtype.itemsize, ADAPTERS.rank, checkpointing=checkpointing)
        expected += 0 if checkpointing else casts
        assert size == pytest.approx(expected, rel=TOLERANCE), (checkpointing, size / expected)


@pytest.mark.parametrize("targets", [("q_proj", "v_proj"), ("down_proj",), ("o_proj", "up_proj")])
def test_saved_activations_of_chosen_modules_in_chosen_layers(targets):
    adapters = replace(ADAPTERS, target_modules=targets, layers_to_transform=(0, 1))
    model = build("qwen2", "small", torch.float32)
    shape = shape_of(model, adapters)
    lora = MultiLora.inject(model, adapters, seed=0)
    measured = saved_activations(model, lora, checkpointing=False)
    assert measured == pytest.approx(shape.saved(TOKENS, 4, adapters.rank, checkpointing=False), rel=TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("entropy", [False, True])
def test_copies_of_the_logits_that_verls_loss_keeps(dtype, entropy, monkeypatch):
    torch_functional = pytest.importorskip("verl.utils.torch_functional")
    monkeypatch.setattr(torch_functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", False)
    vocabulary, tokens, outputs = 2048, 32, []
    logits = torch.randn(tokens, vocabulary, dtype=dtype, requires_grad=True)

    def loss():
        scaled = logits * 1.0  # as the output head makes them: not a leaf
        outputs.append(scaled)
        outputs.append(torch_functional.logprobs_from_logits(scaled, torch.zeros(tokens, dtype=torch.long)))
        if entropy:
            outputs.append(torch_functional.entropy_from_logits(scaled))

    size = saved_by(torch.nn.Module(), loss)
    logits_are_saved = dtype is torch.float32 or entropy
    kept, _ = logit_copies(dtype.itemsize, fused=False, entropy=entropy, scaled=False)
    expected = kept - (not logits_are_saved)  # the output itself lives, saved or not
    assert size / logits.nbytes == pytest.approx(expected, rel=TOLERANCE)


# A 7B model of the Qwen2 family.
SEVEN_B = Qwen2Config(
    hidden_size=3584,
    intermediate_size=18944,
    num_hidden_layers=28,
    num_attention_heads=28,
    num_key_value_heads=4,
    vocab_size=152064,
    tie_word_embeddings=False,
)


@pytest.fixture
def folder(tmp_path):
    SEVEN_B.architectures = ["Qwen2ForCausalLM"]
    SEVEN_B.save_pretrained(tmp_path)
    return tmp_path


def settings(**changes) -> Settings:
    return replace(settings_of(compose(["population=8t8s"])), **changes)


def test_a_plan_needs_no_weights_and_counts_a_population(folder):
    config = compose(["population=8t8s"])
    shape = shape_of(model_on_meta(folder / "config.json"), adapters_of(config))
    assert shape.parameters == 7_615_616_512
    found = plan_of(config, folder, 80 * GIB)
    sizes = {item.name: item.bytes for item in found.items}
    assert sizes["base, sharded"] == 7_615_616_512 * 2 // 8
    assert sizes["AdamW moments, float32"] == 2 * sizes["adapters, float32"]
    assert sizes["adapters, float32"] == 16 * shape.adapter_parameters(32) * 4 // 8
    # Keys and values: 2 tensors, bfloat16, 28 layers, 2 of 4 heads on each of 2 GPUs, 128 features.
    assert found.cache_tokens == sizes["engine: cache"] // (2 * 2 * 28 * 2 * 128)


def test_the_engines_share_is_its_parts(folder):
    found = plan_of(compose(["population=8t8s"]), folder, 80 * GIB)
    engine = sum(item.bytes for item in found.items if item.name.startswith("engine"))
    assert engine == int(0.4 * 80 * GIB)


def test_who_is_resident_when(folder):
    shape = shape_of(model_on_meta(folder), ADAPTERS)
    awake, asleep = (plan(shape, settings(engine_sleeps=sleeps), 80 * GIB) for sleeps in (False, True))
    assert awake.peak("update") - asleep.peak("update") == int(0.4 * 80 * GIB)
    assert awake.peak("rollout") == asleep.peak("rollout")
    kept = plan(shape, settings(parameter_offload=True, optimizer_offload=True), 80 * GIB)
    assert kept.peak("update") == asleep.peak("update") and kept.peak("rollout") < asleep.peak("rollout")
    never = plan(shape, settings(state_offload=True), 80 * GIB)
    assert never.peak("update") < kept.peak("update") and never.peak("rollout") == kept.peak("rollout")


def test_more_gpus_shorter_batches_and_checkpointing_need_less(folder):
    shape = shape_of(model_on_meta(folder), ADAPTERS)
    usual = plan(shape, settings(), 80 * GIB).peak("update")
    assert plan(shape, settings(shards=16), 80 * GIB).peak("update") < usual
    assert plan(shape, settings(micro_batch=8192, log_prob_micro_batch=8192), 80 * GIB).peak("update") < usual
    assert plan(shape, settings(checkpointing=False), 80 * GIB).peak("update") > usual
    assert plan(shape, settings(reshard=False), 80 * GIB).peak("update") > usual


def test_the_command_prints_a_table_and_fails_a_run_that_can_not_fit(folder, capsys):
    arguments = ["plan", "--model-config", str(folder), "population=8t8s"]
    assert doctor.main([*arguments, "--gpu-gib", "141"]) == 0
    assert "base, sharded" in capsys.readouterr().out
    assert doctor.main([*arguments, "--gpu-gib", "16", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert not report["ok"] and any("the update needs" in problem for problem in report["problems"])
    assert report["peaks"]["update"] > 16 * GIB


def test_what_has_no_estimate_is_told(folder, tmp_path, capsys):
    assert doctor.main(["plan", "--model-config", str(tmp_path / "nowhere" / "config.json")]) == 2
    assert "error" in capsys.readouterr().err
    assert doctor.main(["plan", "--model-config", str(folder), "no.such.key=1"]) == 2
    assert "no.such.key" in capsys.readouterr().err
    assert doctor.main(["plan", "--model-config", str(folder), "actor_rollout_ref.actor.use_dynamic_bsz=false"]) == 2
    assert "use_dynamic_bsz=true" in capsys.readouterr().err


def test_a_run_is_warned_by_the_smallest_gpu_of_the_machine(folder, tmp_path, monkeypatch):
    config = compose([f"actor_rollout_ref.model.path={folder}"])
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert shortfalls(config) == ()  # no such tool, so nothing is known
    for sizes, count in (("81559\n16384", 1), ("81559\n81559", 0)):
        tool.write_text(f"#!/bin/sh\necho '{sizes}'\n")
        tool.chmod(0o755)
        assert sum("the update needs" in problem for problem in shortfalls(config)) == count


def test_other_architectures_are_refused_with_their_layers(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt_neox", "num_hidden_layers": 1}))
    config = compose(["actor_rollout_ref.model.target_modules=all-linear"])
    with pytest.raises(ValueError, match="knows decoder layers with .* has .*query_key_value"):
        plan_of(config, tmp_path, 80 * GIB)


def test_the_engine_allocates_the_next_rank_it_knows():
    assert [engine_rank(rank) for rank in (1, 3, 8, 33, 512)] == [1, 8, 8, 64, 512]
    with pytest.raises(ValueError, match="up to 512"):
        engine_rank(513)
