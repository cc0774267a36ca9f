"""A frozen linear layer that carries one LoRA pair for every adapter of the population."""

import hashlib
import math
from collections.abc import Sequence

import torch
from torch import nn

from verl_populora.adapters.grouped import multi_lora_linear
from verl_populora.adapters.routing import Router


class MultiLoraLinear(nn.Linear):
    """``y = x W^T + bias + scaling * (x A_i^T) B_i^T`` with the adapter ``i`` of each row.

    The base keeps its parameter names (``weight``, ``bias``), so checkpoints of the base load unchanged.
    Every adapter has its own two parameters, ``lora_A.<name>`` (rank, in_features) and ``lora_B.<name>``
    (out_features, rank): an optimiser can hold separate state and skip an adapter that had no sample. They
    are float32 whatever the base's dtype and are cast to the dtype of the base product (autocast's, if it is
    on).
    """

    def __init__(self, base: nn.Linear, names: Sequence[str], rank: int, scaling: float, router: Router) -> None:
        has_bias = base.bias is not None
        super().__init__(base.in_features, base.out_features, bias=has_bias, device="meta")
        self.weight = base.weight
        self.bias = base.bias
        self.training = base.training
        self.requires_grad_(False)
        self.names = tuple(names)
        self.rank = rank
        self.scaling = scaling
        self._router = router
        where = {"device": base.weight.device, "dtype": torch.float32}
        self.lora_A = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(rank, base.in_features, **where)) for name in names}
        )
        self.lora_B = nn.ParameterDict(
            {name: nn.Parameter(torch.zeros(base.out_features, rank, **where)) for name in names}
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (..., in_features) to (..., out_features) under the routing in force.

        Raises:
            RuntimeError: no routing is in force, or the base weight is trainable.
            ValueError: the routing is for another number of rows or tokens.
        """
        routing = self._router.current
        if routing is None:
            raise RuntimeError(
                "no routing is in force, so it is unknown which adapter each row belongs to; call the model "
                "inside MultiLora.route(...) or MultiLora.base_only(). In a backward pass this means that "
                "a checkpoint made without MultiLora.checkpoint_contexts recomputes activations"
            )
        if self.weight.requires_grad:
            raise RuntimeError("the base weight requires a gradient, but adapters train on a frozen base only")
        weight, bias = self.weight, self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        names = [self.names[slot] for slot in routing.adapters]
        lora_a = [self.lora_A[name].to(weight.dtype) for name in names]
        lora_b = [self.lora_B[name].to(weight.dtype) for name in names]
        return multi_lora_linear(x, weight, bias, lora_a, lora_b, routing.groups(x.shape), self.scaling)

    def reset_adapter(self, name: str, generator: torch.Generator) -> None:
        """Start an adapter as PEFT does: A uniform with Kaiming's bound 1 / sqrt(in_features), B zero.

        The draw is made on the CPU, so that it does not depend on where the model lives. Nothing happens on
        the meta device, whose parameters are filled later.
        """
        a, b = self.lora_A[name], self.lora_B[name]
        if a.is_meta:
            return
        draw = torch.empty(a.shape, dtype=torch.float32)
        nn.init.kaiming_uniform_(draw, a=math.sqrt(5), generator=generator)
        with torch.no_grad():
            a.copy_(draw)
            b.zero_()

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, rank={self.rank}, adapters={len(self.names)}"


def factor_generator(seed: int, name: str, module: str) -> torch.Generator:
    """The random stream of one adapter's pair in one module, independent of all others and of their order."""
    digest = hashlib.blake2b(f"{seed}/{name}/{module}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
