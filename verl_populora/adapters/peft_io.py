"""Ordinary PEFT LoRA folders, read into ``AdapterWeights`` and written back.

A folder holds ``adapter_config.json`` and ``adapter_model.safetensors``. Everything an adapter needs beyond one pair of
factors for each linear layer (DoRA magnitudes, trained biases, whole modules, embeddings, convolutions, an altered
base) is refused with the reason, because arithmetic on the factors alone would silently produce another model.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.files import replacing, write_atomically

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
_PREFIX = "base_model.model."
_KEY = re.compile(rf"^{re.escape(_PREFIX)}(?P<module>.+)\.lora_(?P<factor>[AB])\.weight$")

# Initialisations that move part of the base into the adapter, so that dW is relative to an altered base.
_BASE_ALTERING_INITS = ("pissa", "olora", "corda", "loftq", "lora_ga")

# Options of PEFT's LoraConfig under which an adapter is more than dW = scaling * B A on linear layers.
_UNSUPPORTED_OPTIONS = {
    "use_dora": "DoRA adds a trained magnitude to every layer",
    "lora_bias": "lora_bias trains a bias beside the factors",
    "use_qalora": "QALoRA pools the input of the factors",
    "use_bdlora": "block-diagonal factors would not stay block-diagonal",
    "modules_to_save": "whole modules were trained beside the adapter",
    "trainable_token_indices": "token embeddings were trained beside the adapter",
    "layer_replication": "the base has replicated layers",
    "target_parameters": "factors act on raw parameters instead of linear layers",
    "alora_invocation_tokens": "activated LoRA applies to part of a sequence only",
    "velora_config": "VeLoRA changes the forward pass",
    "monteclora_config": "MonteCLoRA adds sampled parameters",
    "kasa_config": "KaSA adds singular-value parameters",
    "arrow_config": "Arrow routes between several adapters",
}


class UnsupportedAdapterError(ValueError):
    """The folder is a valid adapter of a kind that the low-rank algebra does not cover."""


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """One adapter folder in memory."""

    weights: AdapterWeights
    config: Mapping[str, Any]  # adapter_config.json as it was read
    metadata: Mapping[str, str] = field(default_factory=dict)  # header of the safetensors file

    @property
    def base_model_name(self) -> str:
        return self.config.get("base_model_name_or_path") or ""


def read_peft(folder: str | os.PathLike) -> PeftAdapter:
    """Read a PEFT LoRA folder; tensors keep their dtype and come to the CPU.

    rsLoRA, ``rank_pattern`` and ``alpha_pattern`` are resolved into each module's rank and scaling. Raises
    ``FileNotFoundError`` for a missing file, ``UnsupportedAdapterError`` (a ``ValueError``) for other kinds of
    adapters, ``ValueError`` for a file that contradicts its configuration.
    """
    folder = Path(folder)
    config = _read_config(folder)
    check_supported(config, str(folder))
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        hint = (
            "; it has adapter_model.bin: load it with PEFT and save it again with safe_serialization=True"
            if (folder / "adapter_model.bin").is_file()
            else ""
        )
        raise FileNotFoundError(f"{folder} has no {WEIGHTS_FILE}{hint}")
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a dict)
    factors = _pairs(state, str(path))
    rank, alpha = int(config["r"]), float(config["lora_alpha"])
    rank_pattern, alpha_pattern = config.get("rank_pattern") or {}, config.get("alpha_pattern") or {}
    modules = {}
    for name, (a, b) in factors.items():
        expected_rank = int(_pattern_value(rank_pattern, name, rank))
        if a.shape[0] != expected_rank:
            raise ValueError(
                f"{path}: {name} has rank {a.shape[0]}, but {CONFIG_FILE} says {expected_rank};"
                " the two files do not belong together"
            )
        module_alpha = float(_pattern_value(alpha_pattern, name, alpha))
        divisor = math.sqrt(a.shape[0]) if config.get("use_rslora") else a.shape[0]
        modules[name] = LoraFactors(a, b, module_alpha / divisor)
    effective_alpha = alpha * math.sqrt(rank) if config.get("use_rslora") else alpha
    return PeftAdapter(AdapterWeights(modules, rank, effective_alpha), config, metadata)


def write_peft(
    folder: str | os.PathLike,
    weights: AdapterWeights,
    base_model_name: str,
    config_extra: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a folder that PEFT, vLLM and ``read_peft`` load; each file appears whole or not at all.

    Args:
        config_extra: entries of ``adapter_config.json`` to keep, such as a parent's configuration. Rank, alpha and
            everything that follows from the weights are written from the weights.
        metadata: extra entries for the header of the safetensors file.

    Raises ``ValueError`` for modules whose rank or scaling differs from the adapter's.
    """
    for name, module in weights.modules.items():
        if module.a.shape[0] != weights.rank or not math.isclose(
            module.scaling, weights.alpha / weights.rank, rel_tol=1e-6
        ):
            raise ValueError(
                f"{name} has rank {module.a.shape[0]} and scaling {module.scaling}, the adapter rank {weights.rank}"
                f" and alpha {weights.alpha}: bring all modules to one rank and scaling first"
            )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "bias": "none",
        "lora_dropout": 0.0,
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        **(config_extra or {}),
        "base_model_name_or_path": base_model_name,
        "r": weights.rank,
        "lora_alpha": _plain_number(weights.alpha),
        "use_rslora": False,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
    config.setdefault("target_modules", sorted(weights.modules))
    check_supported(config, str(folder))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / WEIGHTS_FILE) as partial:
        save_file(to_state_dict(weights), partial, metadata={"format": "pt", **(metadata or {})})
    write_atomically(folder / CONFIG_FILE, json.dumps(config, indent=2, sort_keys=True) + "\n")


def to_state_dict(weights: AdapterWeights) -> dict[str, torch.Tensor]:
    """Tensors under PEFT's names, ``base_model.model.<module>.lora_A.weight`` and ``lora_B``; contiguous, on CPU."""
    state = {}
    for name, module in weights.modules.items():
        state[f"{_PREFIX}{name}.lora_A.weight"] = module.a.detach().cpu().contiguous()
        state[f"{_PREFIX}{name}.lora_B.weight"] = module.b.detach().cpu().contiguous()
    return state


def from_state_dict(state: Mapping[str, torch.Tensor], rank: int, alpha: float) -> AdapterWeights:
    """The adapter in a PEFT state dict; every module has rank ``rank`` and scaling ``alpha / rank``.

    Raises ``ValueError`` for keys that are not LoRA factors of linear layers and for other ranks.
    """
    modules = {}
    for name, (a, b) in _pairs(state, "the state dict").items():
        if a.shape[0] != rank:
            raise ValueError(f"{name} has rank {a.shape[0]}, expected {rank}")
        modules[name] = LoraFactors(a, b, alpha / rank)
    return AdapterWeights(modules, rank, alpha)


def check_supported(config: Mapping[str, Any], where: str) -> None:
    """Raise ``UnsupportedAdapterError`` unless the configuration describes plain LoRA on linear layers."""
    kind = str(config.get("peft_type", "")).upper()
    if kind != "LORA":
        raise UnsupportedAdapterError(f"{where}: peft_type is {kind or 'missing'}; only LORA can be handled")
    reasons = [reason for option, reason in _UNSUPPORTED_OPTIONS.items() if config.get(option)]
    if config.get("bias", "none") != "none":
        reasons.append(f"biases were trained beside the adapter (bias={config['bias']!r})")
    init = config.get("init_lora_weights", True)
    if isinstance(init, str) and init.lower().startswith(_BASE_ALTERING_INITS):
        reasons.append(
            f"init_lora_weights={init!r} altered the base; convert the adapter with PEFT's"
            " path_initial_model_for_weight_conversion first"
        )
    if reasons:
        raise UnsupportedAdapterError(f"{where} is not a plain LoRA adapter: {'; '.join(reasons)}")
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if not isinstance(value, int | float) or not value > 0:
            raise ValueError(f"{where}: {key} is {value!r} in {CONFIG_FILE}; expected a positive number")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not a PEFT adapter folder: it has no {CONFIG_FILE}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must hold a JSON object, not {type(config).__name__}")
    return config


def _pairs(state: Mapping[str, torch.Tensor], where: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Module name -> (a, b), in the natural order of layers; raises for anything else in ``state``."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    unknown = []
    for key, tensor in state.items():
        match = _KEY.match(key)
        if match is None:
            unknown.append(key)
        else:
            found.setdefault(match["module"], {})[match["factor"]] = tensor
    if unknown:
        raise UnsupportedAdapterError(
            f"{where} holds {len(unknown)} tensors that are not LoRA factors of linear layers, such as {unknown[0]!r}"
        )
    if not found:
        raise ValueError(f"{where} holds no LoRA factors")
    pairs = {}
    for name in sorted(found, key=_natural_order):
        if set(found[name]) != {"A", "B"}:
            raise ValueError(f"{where}: {name} has lora_{''.join(found[name])} only; its partner is missing")
        a, b = found[name]["A"], found[name]["B"]
        if a.dim() != 2 or b.dim() != 2:
            raise UnsupportedAdapterError(f"{where}: {name} is not a linear layer (factor shapes {tuple(a.shape)})")
        if a.shape[0] != b.shape[1]:
            raise ValueError(f"{where}: {name} has factors of rank {a.shape[0]} (lora_A) and {b.shape[1]} (lora_B)")
        pairs[name] = (a, b)
    return pairs


def _natural_order(name: str) -> list[tuple[int, int, str]]:
    """Sort key under which layer 2 comes before layer 10."""
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in name.split(".")]


def _pattern_value(pattern: Mapping[str, float], name: str, default: float) -> float:
    """PEFT's rule: a key is a regular expression for the end of the module's name; the first match counts."""
    for key, value in pattern.items():
        if re.match(rf"(.*\.)?({key})$", name):
            return value
    return default


def _plain_number(value: float) -> int | float:
    """Integral alphas as integers, which is how PEFT writes them."""
    return int(value) if float(value).is_integer() else float(value)
