"""All adapters of a population on one frozen model: routing, PEFT state dicts in and out, gradients.

multi = MultiLora.inject(model, MultiLoraConfig(names=("teacher1", "student1"), rank=8, alpha=16), seed=0)
with multi.route(slots, layout="padded"):
    loss = ... model(input_ids) ...
loss.backward()                        # outside of route(), with gradient checkpointing too
multi.clear_absent(slots)              # members without a sample in the step: gradient None
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor

from verl_populora.adapters.inject import MultiLoraConfig, expanded_targets, replace_modules, select_modules
from verl_populora.adapters.multi_lora_linear import MultiLoraLinear, factor_generator
from verl_populora.adapters.routing import Activation, Layout, Router, Routing, bind_checkpointing

__all__ = ["Layout", "MultiLora", "MultiLoraConfig"]

PEFT_PREFIX = "base_model.model."


class MultiLora:
    """Handle on a model with injected adapters. Parameters are looked up anew, so sharding them later is
    fine."""

    def __init__(
        self,
        model: nn.Module,
        config: MultiLoraConfig,
        layers: Mapping[str, MultiLoraLinear],
        targets: str | list[str],
        router: Router,
    ) -> None:
        """Use ``MultiLora.inject``."""
        self.config = config
        self.layers = dict(layers)  # adapted layers by module name, in the model's order
        self._model = model
        self._targets = targets
        self._router = router
        self._checkpointing = [m for m in model.modules() if hasattr(m, "gradient_checkpointing")]

    @classmethod
    def inject(cls, model: nn.Module, config: MultiLoraConfig, seed: int) -> "MultiLora":
        """Freeze ``model`` and replace the chosen ``nn.Linear`` layers in place by ``MultiLoraLinear``.

        Every adapter starts as the base: A is drawn from a stream of its own for each (seed, name, module), B
            is zero.
        Inject before sharding. A model on the meta device keeps its parameters there, uninitialised.

        Raises:
            ValueError: the configuration does not fit the model (see ``select_modules``).
        """
        router = Router()
        targets = expanded_targets(model, config)
        layers = replace_modules(model, select_modules(model, config), config, router)
        for module, layer in layers.items():
            for name in config.names:
                layer.reset_adapter(name, factor_generator(seed, name, module))
        return cls(model, config, layers, targets, router)

    # ------------------------------------------------------------------ routing

    def slot(self, name: str) -> int:
        """Slot of an adapter, its place in ``config.names``.

        Raises:
            KeyError: there is no such adapter.
        """
        if name not in self.config.names:
            raise KeyError(f"no adapter named {name!r}; this model holds {list(self.config.names)}")
        return self.config.names.index(name)

    def route(self, slots: Tensor, *, layout: Layout | str) -> Activation:
        """A context in which forward passes send each row (or token) through its adapter.

        The backward pass need not be inside it: layers recomputed by gradient checkpointing see the routing
            of their
        forward pass. Rows of one adapter that lie next to each other are handled as one product, so a
        micro-batch sorted by adapter is fastest; any order is correct.

        Args:
            slots: adapter slots, integer: (batch,) for ``padded`` activations (batch, length, features),
                (tokens,) for ``packed`` ones (1, tokens, features). -1 is the base alone.

        Raises:
            ValueError: ``slots`` is not a vector of integers in range, or ``layout`` is unknown.
            RuntimeError: gradient checkpointing is on in a form that cannot restore the routing.
        """
        if slots.ndim != 1 or slots.is_floating_point() or slots.is_complex() or slots.dtype is torch.bool:
            raise ValueError(f"slots must be a vector of integers, got {slots.dtype} of shape {tuple(slots.shape)}")
        bind_checkpointing(self._checkpointing, self._router.checkpoint_contexts)
        routing = Routing.from_slots(
            slots.tolist(),
            layout=Layout(layout),
            num_adapters=len(self.config.names),
            include_absent=self._is_sharded(),
        )
        return self._router.activate(routing)

    def base_only(self) -> Activation:
        """A context in which the model is the frozen base, for any layout (the reference policy of a KL
        penalty)."""
        bind_checkpointing(self._checkpointing, self._router.checkpoint_contexts)
        return self._router.activate(Routing.base_only())

    def checkpoint_contexts(self) -> tuple[Activation, Activation]:
        """``context_fn`` for direct uses of ``torch.utils.checkpoint``; Hugging Face's are handled by
        ``route``."""
        return self._router.checkpoint_contexts()

    # --------------------------------------------------------------- parameters

    def named_parameters_of(self, name: str) -> list[tuple[str, nn.Parameter]]:
        """PEFT key and parameter of each factor of one adapter, in the model's order, A before B.

        Under FSDP2 these are the sharded parameters, which an optimiser holds; gathered copies are freed.
        """
        self.slot(name)
        self._reshard()
        return [
            (f"{PEFT_PREFIX}{module}.{factor}.weight", getattr(layer, factor)[name])
            for module, layer in self.layers.items()
            for factor in ("lora_A", "lora_B")
        ]

    def parameters_of(self, name: str) -> list[nn.Parameter]:
        """The parameters of one adapter: its parameter group."""
        return [parameter for _, parameter in self.named_parameters_of(name)]

    def clear_absent(self, slots: Iterable[int] | Tensor) -> None:
        """Drop the gradients of adapters that are not among ``slots``, so that an optimiser leaves them
        untouched.

        An adapter without a row has gradient None on an unsharded model and exactly zero under FSDP2, where
        all ranks must reduce the same tensors. AdamW would still move a parameter with a zero gradient.

        Args:
            slots: the slots with samples in this optimiser step, over all micro-batches and ranks.
        """
        present = set(slots.tolist() if isinstance(slots, Tensor) else slots)
        for slot, name in enumerate(self.config.names):
            if slot not in present:
                for parameter in self.parameters_of(name):
                    parameter.grad = None

    # -------------------------------------------------------------- state dicts

    def export(self, name: str) -> dict[str, Tensor]:
        """The adapter as a PEFT state dict of whole, detached copies, float32, on the model's device.

        Under FSDP2 this gathers: all ranks must call it, in the same order.
        """
        return {key: _whole(parameter).clone() for key, parameter in self.named_parameters_of(name)}

    @torch.no_grad()
    def load(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Overwrite the adapter with a PEFT state dict; under FSDP2 every rank passes the whole tensors.

        Nothing is written unless everything fits. Optimiser state is not touched.

        Raises:
            KeyError: there is no such adapter.
            ValueError: a key is missing or unexpected, or a shape differs.
            RuntimeError: the model is on the meta device.
        """
        parameters = dict(self.named_parameters_of(name))
        problems = [f"missing {key}" for key in parameters if key not in state]
        problems += [f"unexpected {key}" for key in state if key not in parameters]
        problems += [
            f"{key} has shape {tuple(state[key].shape)}, expected {tuple(parameter.shape)}"
            for key, parameter in parameters.items()
            if key in state and state[key].shape != parameter.shape
        ]
        if problems:
            shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
            raise ValueError(f"the state dict does not fit adapter {name!r}: {shown}")
        for key, parameter in parameters.items():
            if parameter.is_meta:
                raise RuntimeError(f"{key} of adapter {name!r} is on the meta device; materialise the model first")
            _write(parameter, state[key])

    def peft_config(self, name: str) -> dict[str, Any]:
        """``adapter_config.json`` of one adapter as PEFT and vLLM read it; JSON-serialisable."""
        self.slot(name)
        config = self.config.lora_config(self._targets)
        config.base_model_name_or_path = getattr(self._model, "name_or_path", None) or None
        config.inference_mode = True
        return json.loads(json.dumps(config.to_dict(), default=sorted))  # enums to text, sets to lists

    # ----------------------------------------------------------------- sharding

    def _is_sharded(self) -> bool:
        return any(isinstance(module, FSDPModule) for module in self._model.modules())

    def _reshard(self) -> None:
        """Free gathered parameters, which stand in for the sharded ones after a pass without a backward."""
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def _whole(parameter: Tensor) -> Tensor:
    value = parameter.detach()
    if not isinstance(value, DTensor):
        return value
    # An offloaded shard is gathered where the mesh is: its collectives run there.
    return value.to(value.device_mesh.device_type).full_tensor()  # pyright: ignore[reportAttributeAccessIssue]


def _write(parameter: Tensor, value: Tensor) -> None:
    if isinstance(parameter, DTensor):
        whole = value.to(device=parameter.device, dtype=parameter.dtype)
        value = distribute_tensor(whole, parameter.device_mesh, parameter.placements, src_data_rank=None)
    parameter.copy_(value)
