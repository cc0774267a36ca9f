"""Models and the reference for multi-LoRA tests: PEFT's own layers, adapters set by hooks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Qwen2Config, Qwen2ForCausalLM

from verl_populora.adapters.multi_lora import MultiLora, MultiLoraConfig

IGNORED = -100  # label of tokens without loss
BASE_NAME = "__base__"  # PEFT's name for rows without an adapter
TINY = Qwen2Config(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=True,
)


def random_model(config: Qwen2Config = TINY, seed: int = 0) -> Qwen2ForCausalLM:
    """A Qwen2 with random weights in training mode; the same seed gives the same weights."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(config).train()


def randomise_b(multi: MultiLora, seed: int = 1, std: float = 0.05) -> None:
    """Draw B, which starts at zero, so that adapters differ from the base and all gradients are alive."""
    generator = torch.Generator().manual_seed(seed)
    for name in multi.config.names:
        state = multi.export(name)
        for key in state:
            if "lora_B" in key:
                state[key] = torch.randn(state[key].shape, generator=generator) * std
        multi.load(name, state)


def multi_lora_model(
    names: Sequence[str], *, base: Qwen2Config = TINY, rank: int = 4, alpha: float = 8.0, **targets: Any
) -> tuple[Qwen2ForCausalLM, MultiLora]:
    """A random model with adapters that are all different and away from the base."""
    model = random_model(base)
    multi = MultiLora.inject(model, MultiLoraConfig(tuple(names), rank, alpha, **targets), seed=3)
    randomise_b(multi)
    return model, multi


class PeftReference:
    """The same base and adapters in PEFT, trained in mixed micro-batches through forward pre-hooks."""

    def __init__(self, multi: MultiLora, base: nn.Module) -> None:
        """``base``: a fresh copy of the bare model that ``multi`` was injected into."""
        first, *others = multi.config.names
        config = LoraConfig(**{**multi.peft_config(first), "inference_mode": False})
        self.model = get_peft_model(base, config, adapter_name=first)  # type: ignore[arg-type]
        for name in others:
            self.model.add_adapter(name, config)
        for name in multi.config.names:
            state = multi.export(name)
            # PEFT drops keys that contain the name of another adapter, so all keys must have arrived.
            result = set_peft_model_state_dict(self.model, state, adapter_name=name)
            assert not result.unexpected_keys
        for key, parameter in self.model.named_parameters():
            parameter.requires_grad_(".lora_" in key)
        self.layers = [module for module in self.model.modules() if isinstance(module, LoraLayer)]

    @contextmanager
    def route(self, names: Sequence[str]) -> Iterator[None]:
        def inject(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return args, {**kwargs, "adapter_names": list(names)}

        handles = [m.register_forward_pre_hook(inject, with_kwargs=True) for m in self.layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def gradients(self, name: str) -> dict[str, Tensor | None]:
        """Gradients of one adapter under the keys of its PEFT state dict."""
        return {
            key.replace(f".{name}.weight", ".weight"): parameter.grad
            for key, parameter in self.model.named_parameters()
            if key.endswith(f".{name}.weight")
        }


def gradients(multi: MultiLora, name: str) -> dict[str, Tensor | None]:
    return {key: parameter.grad for key, parameter in multi.named_parameters_of(name)}


def summed_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy summed over the labelled next tokens of (batch, length)."""
    return cross_entropy(
        logits[:, :-1].flatten(0, 1).float(),
        labels[:, 1:].flatten(),
        reduction="sum",
        ignore_index=IGNORED,
    )


def random_batch(lengths: Sequence[int], seed: int = 0) -> dict[str, Tensor]:
    """Right-padded random sequences; the first two tokens of each have no loss. (batch, longest) each."""
    generator = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(1, TINY.vocab_size, (len(lengths), longest), generator=generator)
    mask = (torch.arange(longest)[None] < torch.tensor(lengths)[:, None]).long()
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, :2] = IGNORED
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def forward_loss(model: Callable[..., Any], batch: Mapping[str, Tensor]) -> Tensor:
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    return summed_loss(model(**inputs, use_cache=False).logits, batch["labels"])


def rows_of(batch: Mapping[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
    return {key: value[rows] for key, value in batch.items()}
