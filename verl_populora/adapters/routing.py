"""Which rows of a micro-batch belong to which adapter, worked out once and shared by every layer."""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cached_property, partial
from itertools import pairwise
from types import TracebackType
from typing import Any, NamedTuple

import torch

BASE_SLOT = -1  # rows of this slot see the frozen base alone


class Layout(StrEnum):
    """How the activations of a micro-batch are laid out, and so what one slot stands for."""

    PADDED = "padded"  # (batch, length, features): one slot for each row of the batch
    PACKED = "packed"  # (1, tokens, features), sequences back to back: one slot for each token


class Span(NamedTuple):
    """A contiguous run of rows that one adapter handles."""

    start: int
    stop: int  # exclusive
    index: int  # position in ``Routing.adapters``


class RowGroups:
    """The spans of one micro-batch over the flattened rows of an activation, in the forms that products
    need."""

    def __init__(self, spans: tuple[Span, ...], rows: int) -> None:
        self.spans = spans  # ascending, disjoint; rows outside every span see the base alone
        self.rows = rows
        self._offsets: dict[torch.device, torch.Tensor] = {}

    @cached_property
    def cover(self) -> tuple[tuple[int | None, int], ...]:
        """Groups that cover all rows: position of the adapter (None for the base alone) and exclusive end."""
        groups: list[tuple[int | None, int]] = []
        covered = 0
        for start, stop, index in self.spans:
            if start > covered:
                groups.append((None, start))
            groups.append((index, stop))
            covered = stop
        if covered < self.rows:
            groups.append((None, self.rows))
        return tuple(groups)

    def offsets(self, device: torch.device) -> torch.Tensor:
        """Where each group of ``cover`` ends, (groups,) int32; copied to a device once."""
        if device not in self._offsets:
            ends = [end for _, end in self.cover]
            self._offsets[device] = torch.tensor(ends, dtype=torch.int32, device=device)
        return self._offsets[device]


class Routing:
    """The routing of one micro-batch: which rows (padded) or tokens (packed) belong to which adapter."""

    def __init__(self, layout: Layout | None, units: int, adapters: tuple[int, ...], spans: tuple[Span, ...]) -> None:
        """Use ``from_slots`` or ``base_only``.

        Args:
            layout: None fits any activation; then there are no spans.
            units: rows of the batch (padded) or tokens (packed).
            adapters: slots of the adapters that take part, ascending; spans refer to positions in it.
            spans: neighbouring units of one adapter merged, in units, ascending. The rest sees the base
                alone.
        """
        self.layout = layout
        self.units = units
        self.adapters = adapters
        self.spans = spans
        self._groups: dict[int, RowGroups] = {}

    @classmethod
    def from_slots(
        cls, slots: Sequence[int], *, layout: Layout, num_adapters: int, include_absent: bool = False
    ) -> "Routing":
        """Work out the spans.

        Args:
            slots: adapter slot of each unit, in ``[-1, num_adapters)``; -1 is the base alone.
            include_absent: let adapters without a unit take part too, so that they get zero gradients.

        Raises:
            ValueError: there is no unit, or a slot is out of range.
        """
        if len(slots) == 0:
            raise ValueError("cannot route an empty micro-batch: slots has no element")
        if bad := sorted({slot for slot in slots if not BASE_SLOT <= slot < num_adapters}):
            raise ValueError(
                f"adapter slots {bad} are out of range: the model holds {num_adapters} adapters, so a slot "
                f"is 0..{num_adapters - 1}, or {BASE_SLOT} for the base alone"
            )
        present = sorted(set(slots) - {BASE_SLOT})
        adapters = tuple(range(num_adapters)) if include_absent else tuple(present)
        position = {slot: index for index, slot in enumerate(adapters)}
        edges = [0, *(i for i in range(1, len(slots)) if slots[i] != slots[i - 1]), len(slots)]
        spans = tuple(
            Span(start, stop, position[slots[start]]) for start, stop in pairwise(edges) if slots[start] != BASE_SLOT
        )
        return cls(layout, len(slots), adapters, spans)

    @classmethod
    def base_only(cls) -> "Routing":
        """The routing that sends every row of any activation through the base alone."""
        return cls(None, 0, (), ())

    def groups(self, shape: Sequence[int]) -> RowGroups:
        """The spans over the flattened rows of an activation of shape ``(*leading, features)``.

        Raises:
            ValueError: the activation does not have the units that were routed.
        """
        leading = tuple(shape[:-1])
        if self.layout is Layout.PACKED and leading not in ((self.units,), (1, self.units)):
            raise ValueError(
                f"packed routing of {self.units} tokens met an activation of shape {tuple(shape)}; expected "
                f"(1, {self.units}, features): give one slot for each token that this forward pass sees"
            )
        if self.layout is Layout.PADDED and leading[:1] != (self.units,):
            raise ValueError(
                f"padded routing of {self.units} rows met an activation of shape {tuple(shape)}; expected "
                f"({self.units}, length, features): give one slot for each row, or use layout='packed'"
            )
        rows = math.prod(leading)
        if rows not in self._groups:
            length = rows // max(self.units, 1)
            spans = tuple(Span(start * length, stop * length, index) for start, stop, index in self.spans)
            self._groups[rows] = RowGroups(spans, rows)
        return self._groups[rows]


class Router:
    """The routing that is in force, shared by all adapted layers of one model.

    It is a plain attribute and not a context variable because gradient checkpointing recomputes layers in
    autograd's own threads. One model serves one forward or backward pass at a time.
    """

    def __init__(self) -> None:
        self.current: Routing | None = None

    def activate(self, routing: Routing | None) -> "Activation":
        """A context manager under which ``routing`` is in force; it can be entered again."""
        return Activation(self, routing)

    def checkpoint_contexts(self) -> tuple["Activation", "Activation"]:
        """``context_fn`` of ``torch.utils.checkpoint``: recompute under the routing of the original forward
        pass."""
        return self.activate(self.current), self.activate(self.current)


class Activation:
    """Puts a routing in force and restores the previous one. Re-enterable: a retained graph recomputes
    repeatedly."""

    def __init__(self, router: Router, routing: Routing | None) -> None:
        self._router = router
        self._routing = routing
        self._previous: list[Routing | None] = []

    def __enter__(self) -> None:
        self._previous.append(self._router.current)
        self._router.current = self._routing

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._router.current = self._previous.pop()


def bind_checkpointing(modules: Iterable[Any], context_fn: Callable[[], tuple[Activation, Activation]]) -> None:
    """Make Hugging Face's gradient checkpointing recompute each layer under the routing of its forward pass.

    Args:
        modules: the modules with a ``gradient_checkpointing`` flag; those where it is off are left alone.

    Raises:
        RuntimeError: checkpointing is reentrant or brings its own ``context_fn``.
    """
    for module in modules:
        function = getattr(module, "_gradient_checkpointing_func", None)
        if not module.gradient_checkpointing or function is None:
            continue
        keywords = getattr(function, "keywords", {})
        if keywords.get("context_fn") == context_fn:
            continue
        if keywords.get("use_reentrant") is not False or "context_fn" in keywords:
            raise RuntimeError(
                f"{type(module).__name__} checkpoints its activations with {keywords}; mixed adapters need "
                "gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': False}) and "
                "no other context_fn, because a recomputed layer has to see the routing of its forward pass"
            )
        module._gradient_checkpointing_func = partial(function, context_fn=context_fn)
