"""The interface of variation operators and what all of them share."""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor

from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution.lowrank import LowRankSvd, svd_of_each
from verl_populora.evolution.recompression import FactorSpec, recompress

MAX_WORKERS = 4  # groups of modules at once; more would wait for the interpreter, and each holds its own temporaries
_GROUP = 14  # modules that a worker takes together: more are not faster, and hold more temporaries

_ALIGNMENT = 64  # bytes; what PyTorch gives to every tensor it allocates

Track = Callable[[Sequence[str]], Iterable[str]]
"""Wraps the iteration over module names, for a progress bar."""


@dataclass(frozen=True, slots=True)
class Streams:
    """Random streams of one birth: one for each module, named, and one for what all modules share.

    A module's stream depends on the seed and its name only, so its noise stays the same whatever other modules the
    adapter has and in whatever order they are visited.
    """

    seed: int

    def module(self, name: str) -> torch.Generator:
        digest = hashlib.blake2b(f"{self.seed}/{name}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)

    def shared(self) -> torch.Generator:
        return self.module("")


@dataclass(frozen=True, slots=True)
class Locus:
    """One module that is to be varied."""

    name: str
    parents: tuple[LoraFactors, ...]  # the module in each parent, fitter parent first
    spec: FactorSpec
    generator: torch.Generator  # the module's random stream


@dataclass(frozen=True)
class Operator(ABC):
    """A variation operator: parents in, one child out.

    Subclass it as a frozen dataclass whose fields are the operator's parameters, set ``name`` and ``arity``, implement
    ``vary`` and register the class with ``register_operator``. The child is computed on the CPU, in float32 or better,
    and rounded once to the dtype of the first parent.

    Parameters:
        modules: regular expression searched in module names; modules without a match are inherited unchanged from the
            first parent.
        rank, alpha: of the child; those of the first parent where not given.
    """

    name: ClassVar[str]
    arity: ClassVar[int]

    modules: str = ""
    rank: int | None = None
    alpha: float | None = None

    def __post_init__(self) -> None:
        try:
            re.compile(self.modules)
        except re.error as error:
            raise ValueError(f"modules={self.modules!r} is not a regular expression: {error}") from error
        if self.rank is not None and self.rank < 1:
            raise ValueError(f"rank of the child must be at least 1, not {self.rank}")
        if self.alpha is not None and not self.alpha > 0:
            raise ValueError(f"alpha of the child must be positive, not {self.alpha}")

    @property
    def params(self) -> dict[str, Any]:
        """All parameters that rebuild this operator: ``make_operator(name, **params)``."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __call__(self, parents: Sequence[AdapterWeights], seed: int, track: Track | None = None) -> AdapterWeights:
        """The child of ``parents``, ordered from the fittest; equal arguments give equal bits.

        Raises ``ValueError`` for a wrong number of parents, parents that do not fit each other, factors that are not
        finite, or a pattern that matches no module.
        """
        check_parents(parents, self.arity, self.name)
        first = parents[0]
        names = [name for name in first.modules if re.search(self.modules, name)]
        if not names:
            raise ValueError(f"modules={self.modules!r} matches none of the adapter's {len(first.modules)} modules")
        rank, alpha = self.rank or first.rank, self.alpha or first.alpha
        streams = Streams(seed)
        shared = self.draw_shared(names, streams.shared())
        chosen = set(names)

        def locus(name: str) -> Locus:
            factors = tuple(_canonical(parent.modules[name]) for parent in parents)
            return Locus(name, factors, FactorSpec(rank, alpha, factors[0].a.dtype), streams.module(name))

        def make(group: Sequence[str]) -> list[LoraFactors]:
            loci = [locus(name) for name in group]
            varied = iter(self.vary_group([one for one in loci if one.name in chosen], shared))
            made = [next(varied) if one.name in chosen else inherit(one.parents[0], one.spec) for one in loci]
            for name, module in zip(group, made, strict=True):
                _check_finite(name, module)
            return made

        every = list(first.modules)
        with _workers() as run:
            groups = run(make, [every[start : start + _GROUP] for start in range(0, len(every), _GROUP)])
            made = chain.from_iterable(groups)
            child = {name: next(made) for name in (track(every) if track else every)}
        return AdapterWeights(child, rank, alpha)

    def draw_shared(self, names: Sequence[str], generator: torch.Generator) -> Any:
        """Random choices that concern all modules at once; handed to every ``vary``."""
        return None

    def vary_group(self, loci: Sequence[Locus], shared: Any) -> list[LoraFactors]:
        """``vary`` of several modules; for operators that save time by taking them together. May be empty."""
        return [self.vary(one.name, one.parents, one.spec, one.generator, shared) for one in loci]

    @abstractmethod
    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        """One module of the child, as ``spec`` describes; must not return or change a parent's tensors."""


@contextmanager
def _workers() -> Iterator[
    Callable[[Callable[[Sequence[str]], list[LoraFactors]], Sequence[Sequence[str]]], Iterator[list[LoraFactors]]]
]:
    """A ``map`` over groups of modules on as many threads as PyTorch has for one operation, each single-threaded.

    A module is a few large products and many operations on r x r matrices, which do not spread over threads; several
    modules at once keep the cores busy throughout.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield map
        return
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(min(threads, MAX_WORKERS)) as pool:
            yield pool.map
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class SpectralOperator(Operator):
    """An operator on the parents' singular value decompositions; implement ``recombine`` in place of ``vary``."""

    def vary(
        self,
        name: str,
        parents: tuple[LoraFactors, ...],
        spec: FactorSpec,
        generator: torch.Generator,
        shared: Any,
    ) -> LoraFactors:
        (child,) = self.vary_group([Locus(name, parents, spec, generator)], shared)
        return child

    def vary_group(self, loci: Sequence[Locus], shared: Any) -> list[LoraFactors]:
        spectra = iter(svd_of_each([update for one in loci for update in one.parents]))
        return [
            self.recombine(tuple(next(spectra).truncate(one.spec.rank) for _ in one.parents), one.spec, one.generator)
            for one in loci
        ]

    @abstractmethod
    def recombine(self, parents: tuple[LowRankSvd, ...], spec: FactorSpec, generator: torch.Generator) -> LoraFactors:
        """One module of the child from its decomposition in each parent, which has at most ``spec.rank`` triplets."""


def inherit(parent: LoraFactors, spec: FactorSpec) -> LoraFactors:
    """A copy of the parent's module in the child's rank and scaling.

    Factors are copied as they are where rank and scaling agree; otherwise dW is recompressed, exactly unless the
    child's rank is smaller.
    """
    if parent.a.shape[0] != spec.rank:
        return recompress([(1.0, parent)], spec)
    ratio = parent.scaling / spec.scaling
    b = parent.b.clone() if ratio == 1.0 else (parent.b.float() * ratio).to(spec.dtype)
    return LoraFactors(parent.a.clone(), b, spec.scaling)


def check_parents(parents: Sequence[AdapterWeights], arity: int, operator: str) -> None:
    """Raise ``ValueError`` unless there are ``arity`` parents with the same modules and layer shapes."""
    if len(parents) != arity:
        raise ValueError(f"operator {operator!r} takes {arity} parent(s), got {len(parents)}")
    first = parents[0]
    if not first.modules:
        raise ValueError("a parent has no modules")
    for position, other in enumerate(parents[1:], start=2):
        difference = set(first.modules) ^ set(other.modules)
        if difference:
            example = min(difference)
            holder = 1 if example in first.modules else position
            raise ValueError(
                f"parents 1 and {position} adapt different modules: {len(difference)} are in one only, such as"
                f" {example} (in parent {holder})"
            )
        for name, module in first.modules.items():
            shapes = [(one.b.shape[0], one.a.shape[1]) for one in (module, other.modules[name])]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"{name} has (out, in) = {shapes[0]} in parent 1 and {shapes[1]} in parent {position}:"
                    " the parents belong to different bases"
                )


def _canonical(module: LoraFactors) -> LoraFactors:
    return LoraFactors(_aligned(module.a), _aligned(module.b), module.scaling)


def _aligned(tensor: Tensor) -> Tensor:
    """The tensor on the CPU, contiguous and aligned.

    Matrix libraries choose their order of summation by alignment, and tensors read from a file or cut out of a larger
    one start anywhere; a child must not depend on where its parents' memory happens to begin.
    """
    tensor = tensor.detach().cpu().contiguous()
    return tensor if tensor.data_ptr() % _ALIGNMENT == 0 else tensor.clone()


def _check_finite(name: str, module: LoraFactors) -> None:
    for factor, tensor in (("A", module.a), ("B", module.b)):
        # A finite norm proves finite entries in one cheap pass; only an overflowing norm needs the exact test.
        if not torch.isfinite(torch.linalg.vector_norm(tensor)) and not torch.isfinite(tensor).all():
            raise ValueError(
                f"lora_{factor} of {name} is not finite in the child: a parent holds NaN or infinite entries, or the"
                f" result overflows {tensor.dtype}"
            )
