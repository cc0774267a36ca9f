"""Which modules of a model carry adapters, and putting the adapted layers in their place."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from peft import LoraConfig, TaskType
from peft.tuners.tuners_utils import check_target_module_exists
from torch import nn
from transformers import PreTrainedModel

from verl_populora.adapters.multi_lora_linear import MultiLoraLinear
from verl_populora.adapters.routing import Router

ALL_LINEAR = "all-linear"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class MultiLoraConfig:
    """The adapters of a population; all have the same shape.

    Raises:
        ValueError: a field is out of its range; the message names it.
    """

    names: tuple[str, ...]  # seats ("teacher1"), in slot order; letters, digits, "_" and "-", first a letter
    rank: int
    alpha: float  # the update is scaled by alpha / rank
    # PEFT's meaning: "all-linear" (all but the output head), a regular expression for whole module names, or
    # a tuple of module names or name endings ("q_proj").
    target_modules: str | tuple[str, ...] = ALL_LINEAR
    layers_to_transform: tuple[int, ...] | None = None  # decoder layers, from 0; None for all
    exclude_modules: str | tuple[str, ...] | None = None  # same forms as target_modules

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ValueError(f"adapter names must be at least one and all different, got {self.names}")
        for name in self.names:
            if not _NAME.fullmatch(name) or hasattr(nn.ParameterDict(), name):
                raise ValueError(
                    f"{name!r} is no usable adapter name: use letters, digits, '_' and '-' after a first "
                    "letter, and no attribute of torch.nn.ParameterDict"
                )
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        if not self.alpha > 0:
            raise ValueError(f"alpha must be positive, got {self.alpha}")
        if not self.target_modules:
            raise ValueError("target_modules is empty; name the modules to adapt or use 'all-linear'")
        if self.layers_to_transform is not None and not self.layers_to_transform:
            raise ValueError("layers_to_transform is empty; use None to adapt every layer")
        if self.layers_to_transform is not None and self._is_pattern:
            raise ValueError("layers_to_transform has no effect on a regular expression; put the layers into it")

    @property
    def _is_pattern(self) -> bool:
        return isinstance(self.target_modules, str) and self.target_modules != ALL_LINEAR

    @property
    def scaling(self) -> float:
        return self.alpha / self.rank

    def lora_config(self, target_modules: str | list[str]) -> LoraConfig:
        """PEFT's configuration of one adapter, with the targets spelled out."""
        layers = None if self.layers_to_transform is None else list(self.layers_to_transform)
        exclude = self.exclude_modules
        return LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            r=self.rank,
            lora_alpha=int(self.alpha) if self.alpha == int(self.alpha) else self.alpha,  # type: ignore
            target_modules=target_modules,
            layers_to_transform=layers,
            exclude_modules=list(exclude) if isinstance(exclude, tuple) else exclude,
            lora_dropout=0.0,
            bias="none",
        )


def expanded_targets(model: nn.Module, config: MultiLoraConfig) -> str | list[str]:
    """``target_modules`` in a form that needs no model: "all-linear" becomes the endings of all linear
    layers.

    The output head is left out; if its name ends like another layer's, whole names are listed instead of
    endings.
    """
    if config.target_modules != ALL_LINEAR:
        targets = config.target_modules
        return targets if isinstance(targets, str) else sorted(targets)
    head = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    names = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    adapted = [name for name in names if model.get_submodule(name) is not head]
    endings = {name.rpartition(".")[2] for name in adapted}
    is_ambiguous = any(name.rpartition(".")[2] in endings for name in names if name not in adapted)
    return adapted if is_ambiguous else sorted(endings)


def select_modules(model: nn.Module, config: MultiLoraConfig) -> dict[str, nn.Linear]:
    """The layers that get adapters, by name, in the model's order, chosen by PEFT's own rule.

    Raises:
        ValueError: nothing matches; a target, or a layer of ``layers_to_transform``, matches nothing; or a
            match is not a linear layer.
    """
    targets = expanded_targets(model, config)
    chosen = _matching(model, config.lora_config(targets))
    linear_names = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
    if not chosen:
        raise ValueError(
            f"no module matches target_modules={config.target_modules}, layers_to_transform="
            f"{config.layers_to_transform}, exclude_modules={config.exclude_modules}; linear layers end in "
            f"{linear_names}"
        )
    if isinstance(config.target_modules, tuple):
        for target in targets:
            if not _matching(model, config.lora_config([target])):
                raise ValueError(f"target module {target!r} matches nothing; linear layers end in {linear_names}")
    for layer in config.layers_to_transform or ():
        one_layer = replace(config, layers_to_transform=(layer,))
        if not _matching(model, one_layer.lora_config(targets)):
            raise ValueError(f"layer {layer} of layers_to_transform has no adapted module in this model")
    for name, module in chosen.items():
        if isinstance(module, MultiLoraLinear):
            raise ValueError(f"{name} carries adapters already; inject them once, into the bare base model")
        if not isinstance(module, nn.Linear):
            raise ValueError(f"{name} is a {type(module).__name__}; adapters go on torch.nn.Linear layers only")
    return {name: module for name, module in chosen.items() if isinstance(module, nn.Linear)}


def replace_modules(
    model: nn.Module, chosen: Mapping[str, nn.Linear], config: MultiLoraConfig, router: Router
) -> dict[str, MultiLoraLinear]:
    """Freeze the model and put a ``MultiLoraLinear`` on the place of every chosen layer; parameters are
    shared."""
    model.requires_grad_(False)
    layers = {}
    for name, base in chosen.items():
        layer = MultiLoraLinear(base, config.names, config.rank, config.scaling, router)
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer)
        layers[name] = layer
    return layers


def _matching(model: nn.Module, config: LoraConfig) -> dict[str, nn.Module]:
    return {n: m for n, m in model.named_modules() if n and _is_target(config, n)}


def _is_target(config: LoraConfig, name: str) -> bool:
    return bool(check_target_module_exists(config, name))
