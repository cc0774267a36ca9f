"""The memory plan of a configuration: shapes from the model's config.json, no weights, nothing downloaded."""

import importlib.util
import subprocess
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from verl_populora.adapters.inject import MultiLoraConfig, select_modules
from verl_populora.layout import PopulationLayout
from verl_populora.memory import LayerShape, ModelShape, Plan, Settings, plan

_ITEMSIZE = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "half": 2, "fp8": 1}
_ITEMSIZE |= {"fp8_e4m3": 1, "fp8_e5m2": 1}
_LINEARS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def plan_of(config: DictConfig, model_config: str | Path, gpu: int) -> Plan:
    """What a run with ``config`` holds on each GPU of ``gpu`` bytes.

    Args:
        model_config: a ``config.json``, a folder with one, or a hub name whose configuration is in the local cache.

    Raises:
        OSError: there is no such configuration on this machine.
        ValueError: the model is not one that the formula describes, or a setting is not known.
    """
    try:
        shape = shape_of(model_on_meta(model_config), adapters_of(config))
    except KeyError as error:
        raise ValueError(f"{model_config}: unknown model type or attribute {error}") from error
    return plan(shape, settings_of(config), gpu)


def shortfalls(config: DictConfig) -> tuple[str, ...]:
    """Why this run can't fit into this machine's GPUs; empty if it can, or where there is no estimate."""
    try:
        return plan_of(config, str(config.actor_rollout_ref.model.path), _smallest_gpu()).problems
    except (OSError, ValueError, subprocess.SubprocessError):
        return ()


def _smallest_gpu() -> int:
    """Bytes. Asked of nvidia-smi, since CUDA would leave a context of this process on the GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    answer = subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout
    return min(int(mebibytes) for mebibytes in answer.split()) * 2**20


def model_on_meta(model_config: str | Path) -> PreTrainedModel:
    """The model without storage.

    Raises:
        OSError: there is no such configuration on this machine.
        ValueError: it is not of a causal language model.
    """
    found = AutoConfig.from_pretrained(str(model_config), local_files_only=True)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(found)


def adapters_of(config: DictConfig) -> MultiLoraConfig:
    """One member's adapter, as the trainer reads it."""
    model = config.actor_rollout_ref.model
    targets, layers, excluded = model.target_modules, model.lora.layers_to_transform, model.exclude_modules
    return MultiLoraConfig(
        names=("member",),
        rank=int(model.lora_rank),
        alpha=float(model.lora_alpha),
        target_modules=targets if isinstance(targets, str) else tuple(targets),
        exclude_modules=excluded if excluded is None or isinstance(excluded, str) else tuple(excluded),
        layers_to_transform=None if layers is None else tuple(layers),
    )


def shape_of(model: PreTrainedModel, adapters: MultiLoraConfig) -> ModelShape:
    """Sizes of a decoder made of RMSNorm, rotary attention and a gated MLP, on any device.

    Raises:
        ValueError: its layers are made of something else.
    """
    adapted = select_modules(model, adapters)
    wrapped = set(getattr(model, "_no_split_modules", None) or ())
    layers = [(name, module) for name, module in model.named_modules() if type(module).__name__ in wrapped]
    settings = model.config
    if not layers:
        raise ValueError(f"{type(model).__name__} names no decoder layers, so that FSDP2 can't shard it by layer")
    stray = [name for name in adapted if not any(name.startswith(f"{layer}.") for layer, _ in layers)]
    if stray:
        raise ValueError(f"the memory plan counts adapters in decoder layers only, not {', '.join(stray[:3])}")
    head_size = getattr(settings, "head_dim", None) or settings.hidden_size // settings.num_attention_heads
    shapes = tuple(_layer_shape(name, layer, adapted, head_size) for name, layer in layers)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    root = parameters - sum(shape.parameters for shape in shapes)
    return ModelShape(shapes, root, settings.vocab_size, head_size)


def _layer_shape(name: str, layer: torch.nn.Module, adapted: dict[str, torch.nn.Linear], head_size: int) -> LayerShape:
    linears = {n.rpartition(".")[2]: m for n, m in layer.named_modules() if isinstance(m, torch.nn.Linear)}
    if set(linears) != _LINEARS:
        raise ValueError(
            f"the memory plan knows decoder layers with {', '.join(sorted(_LINEARS))}; {name} has "
            f"{', '.join(sorted(linears))}"
        )
    queries, keys = linears["q_proj"].out_features, linears["k_proj"].out_features
    hidden, heads = linears["q_proj"].in_features, queries // head_size
    inputs = rows = 0
    for part, module in layer.named_modules():
        if type(module).__name__.endswith("RMSNorm"):
            per_head = {"q_norm": (queries, heads), "k_norm": (keys, keys // head_size)}
            width, count = per_head.get(part.rpartition(".")[2], (hidden, 1))
            inputs, rows = inputs + width, rows + count
    return LayerShape(
        parameters=sum(parameter.numel() for parameter in layer.parameters()),
        hidden=hidden,
        queries=queries,
        keys=keys,
        intermediate=linears["gate_proj"].out_features,
        heads=heads,
        norm_inputs=inputs,
        norm_rows=rows,
        linears=tuple((module.in_features, module.out_features) for module in linears.values()),
        adapted=tuple(
            (n.rpartition(".")[2], m.in_features, m.out_features)
            for n, m in adapted.items()
            if n.startswith(f"{name}.")
        ),
    )


def settings_of(config: DictConfig) -> Settings:
    """The part of the configuration that decides about memory."""
    actor, rollout, model = (config.actor_rollout_ref[key] for key in ("actor", "rollout", "model"))
    sharding, trainer, population = actor.fsdp_config, config.trainer, config.population
    layout = PopulationLayout.build(
        int(population.teachers),
        int(population.students),
        guest=float(population.evolution.hall_of_fame_matches) > 0,
    )
    gpus = int(trainer.n_gpus_per_node) * int(trainer.nnodes)
    shards = gpus if int(sharding.fsdp_size) < 1 else min(gpus, int(sharding.fsdp_size))
    longest = int(config.data.max_prompt_length) + int(config.data.max_response_length)
    if not actor.use_dynamic_bsz:
        raise ValueError("the memory plan needs actor_rollout_ref.actor.use_dynamic_bsz=true: micro-batches by tokens")
    mixed = sharding.get("mixed_precision") or {}
    coefficients = population.entropy_coeff.values()
    compute = _itemsize(mixed.get("param_dtype", "bf16"))
    cache = (rollout.engine_kwargs.get("vllm") or {}).get("kv_cache_dtype") or "auto"
    return Settings(
        members=len(layout.seats),
        slots=layout.slots,
        rank=int(model.lora_rank),
        model_itemsize=_itemsize(sharding.model_dtype),
        compute_itemsize=compute,
        shards=shards,
        # A sequence is never split, so that a micro-batch holds at least the longest.
        micro_batch=max(int(actor.ppo_max_token_len_per_gpu), longest),
        log_prob_micro_batch=max(int(rollout.log_prob_max_token_len_per_gpu), longest),
        checkpointing=bool(model.enable_gradient_checkpointing),
        fused_loss=importlib.util.find_spec("flash_attn") is not None,
        entropy=bool(actor.calculate_entropy) or float(actor.entropy_coeff) != 0 or any(coefficients),
        scaled_logits=float(rollout.temperature) != 1,
        state_offload=bool(sharding.offload_policy),
        parameter_offload=bool(sharding.param_offload),
        optimizer_offload=bool(sharding.optimizer_offload),
        reshard=bool(sharding.reshard_after_forward),
        engine_share=float(rollout.gpu_memory_utilization),
        engine_sleeps=bool(rollout.free_cache_engine) and bool(rollout.get("enable_sleep_mode", True)),
        engine_itemsize=_itemsize(rollout.dtype),
        cache_itemsize=_itemsize(rollout.dtype if cache == "auto" else cache),
        tensor_parallel=int(rollout.tensor_model_parallel_size),
        batched_tokens=int(rollout.max_num_batched_tokens),
        sequences=int(rollout.max_num_seqs),
        longest=longest,
    )


def _itemsize(dtype: Any) -> int:
    """Bytes of one element of a dtype as verl and vLLM name it.

    Raises:
        ValueError: the name is unknown.
    """
    if str(dtype) not in _ITEMSIZE:
        raise ValueError(f"dtype {dtype!r} is unknown to the memory plan; it knows {', '.join(_ITEMSIZE)}")
    return _ITEMSIZE[str(dtype)]
