"""Time and memory of the variation operators on an adapter of Qwen2.5-7B, rank 32, all linear layers.

    python -m tests.benchmarks.operators [--repeats 5] [--layers 28] [--threads 2] [--clock wall]

Prints one JSON object. ``copy_s`` is the time to clone the adapter's tensors; every operator's ``vs_copy`` is relative
to it. All timings are medians over interleaved repeats in one process, and every timed call starts with its free
memory returned to the system: a birth allocates a new adapter, so page faults belong to it and to the copy alike.

``populora_vs_ours`` compares the spectral mutation with the PyPI package populora 0.4.5 on the same factors, and
``spectrum_error`` the largest deviation of a child's singular values at epsilon = 0 from a float64 reference, relative
to the largest one. Both need the package (``pip install populora==0.4.5``); ``populora`` is null without it.

``extra_memory_vs_layer_float64`` is the peak of tensors beside the child, for all workers together, in units of one
layer's factors in float64.
"""

import argparse
import ctypes
import gc
import importlib.util
import json
import statistics
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from verl_populora.adapters.weights import AdapterWeights, LoraFactors
from verl_populora.evolution.operators.base import MAX_WORKERS
from verl_populora.evolution.registry import ALIASES, make_operator

HIDDEN, KEY_VALUE, INTERMEDIATE = 3584, 512, 18944
LINEAR_LAYERS = {  # (out, in)
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (KEY_VALUE, HIDDEN),
    "self_attn.v_proj": (KEY_VALUE, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
    "mlp.up_proj": (INTERMEDIATE, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTERMEDIATE),
}
RANK, ALPHA = 32, 64.0
SEED = 7
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.process_time}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu: processor time, for a busy machine and one thread"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)

    parents = [random_adapter(options.layers, seed) for seed in (1, 2)]
    operators = {short: make_operator(short) for short in ALIASES}
    calls: dict[str, Callable[[], Any]] = {"copy": lambda: copy(parents[0])}
    for short, operator in operators.items():
        calls[short] = lambda operator=operator: operator(parents[: operator.arity], SEED)
    peer = None
    if importlib.util.find_spec("populora"):
        peer = PopuloraPeer(parents[0])
        calls["populora"] = lambda: peer.mutate(0.1)

    seconds = timings(calls, options.repeats, CLOCKS[options.clock])
    if peer is not None:
        peer.load(parents[0])
    layer_bytes = 8 * RANK * sum(out + inner for out, inner in LINEAR_LAYERS.values())
    child_bytes = sum(tensor.nbytes for tensor in tensors(parents[0]))
    result: dict[str, Any] = {
        "parameters": sum(tensor.numel() for tensor in tensors(parents[0])),
        "threads": options.threads,
        "clock": options.clock,
        "repeats": options.repeats,
        "copy_s": round(seconds["copy"], 4),
        "ops": {},
    }
    for short, operator in operators.items():
        # Every worker may hold the temporaries of its own module at the same time.
        extra = (peak_bytes(calls[short]) - child_bytes) * min(options.threads, MAX_WORKERS)
        result["ops"][short] = {
            "name": operator.name,
            "s": round(seconds[short], 4),
            "vs_copy": round(seconds[short] / seconds["copy"], 2),
            "extra_memory_vs_layer_float64": round(extra / layer_bytes, 2),
        }
    spectral = result["ops"]["m1"]
    spectral["spectrum_error"] = spectrum_error(parents[0], make_operator("m1", epsilon=0.0)([parents[0]], SEED))
    result["populora"] = None
    if peer is not None:
        spectral["populora_vs_ours"] = round(seconds["populora"] / seconds["m1"], 2)
        peer.mutate(0.0)
        result["populora"] = {
            "s": round(seconds["populora"], 4),
            "vs_copy": round(seconds["populora"] / seconds["copy"], 2),
            "spectrum_error": spectrum_error(parents[0], peer.adapter()),
        }
    result["cross_terms"] = cross_terms(parents)
    print(json.dumps(result, indent=2))


def random_adapter(layers: int, seed: int) -> AdapterWeights:
    generator = torch.Generator().manual_seed(seed)
    modules = {
        f"model.layers.{layer}.{name}": LoraFactors(
            torch.randn(RANK, inner, generator=generator) * inner**-0.5,
            torch.randn(out, RANK, generator=generator) * 0.01,
            ALPHA / RANK,
        )
        for layer in range(layers)
        for name, (out, inner) in LINEAR_LAYERS.items()
    }
    return AdapterWeights(modules, RANK, ALPHA)


def tensors(adapter: AdapterWeights) -> list[Tensor]:
    return [tensor for module in adapter.modules.values() for tensor in (module.a, module.b)]


def copy(adapter: AdapterWeights) -> list[Tensor]:
    return [tensor.clone() for tensor in tensors(adapter)]


def timings(calls: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each call over ``repeats`` interleaved rounds, after one round to warm up."""
    release = ctypes.CDLL(None).malloc_trim
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for round_index in range(repeats + 1):
        for name, call in calls.items():
            gc.collect()
            release(0)
            start = clock()
            outcome = call()
            elapsed = clock() - start
            del outcome
            if round_index > 0:
                samples[name].append(elapsed)
    return {name: statistics.median(values) for name, values in samples.items()}


class _PeakMemory(TorchDispatchMode):
    """Follows the storages that tensor operations create."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        outputs = func(*args, **(kwargs or {}))
        known = {id_of(tensor) for tensor in flat_tensors(args) + flat_tensors(kwargs or {})}
        for tensor in flat_tensors(outputs):
            identity = id_of(tensor)
            if identity not in known and identity not in self._seen:
                storage = tensor.untyped_storage()
                self._seen.add(identity)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._freed, identity, storage.nbytes())
        self.peak = max(self.peak, self._live)
        return outputs

    def _freed(self, identity: int, size: int) -> None:
        self._seen.discard(identity)
        self._live -= size


def id_of(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def flat_tensors(values: Any) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list | tuple):
        return [tensor for value in values for tensor in flat_tensors(value)]
    return []


def peak_bytes(call: Callable[[], Any]) -> int:
    """Largest number of bytes in tensors that ``call`` created and that lived at one time, with one worker.

    The tracker sees only the thread that it was entered in, which is where a single worker runs.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with _PeakMemory() as tracker:
        outcome = call()
    torch.set_num_threads(threads)
    del outcome
    return tracker.peak


def singular_values(module: LoraFactors) -> Tensor:
    """Float64 reference by two QR decompositions."""
    core = torch.linalg.qr(module.b.double())[1] @ torch.linalg.qr(module.a.double().T)[1].T
    return torch.linalg.svdvals(core * module.scaling)


def spectrum_error(parent: AdapterWeights, child: AdapterWeights) -> float:
    """In the first layer: largest deviation of the child's singular values, relative to the largest."""
    worst = 0.0
    for name in list(parent.modules)[: len(LINEAR_LAYERS)]:
        reference = singular_values(parent.modules[name])
        deviation = (singular_values(child.modules[name]) - reference).abs().max() / reference[0]
        worst = max(worst, float(deviation))
    return worst


def cross_terms(parents: list[AdapterWeights]) -> dict[str, float]:
    """Error of averaging two independent parents factor by factor, relative to their exact average, first module."""
    name = next(iter(parents[0].modules))
    first, second = (parent.modules[name] for parent in parents)
    exact = 0.5 * first.scaling * (first.b @ first.a + second.b @ second.a)
    average = first.scaling * 0.25 * (first.b + second.b) @ (first.a + second.a)
    recompressed = make_operator("x4", eta_min=0.5, eta_max=0.5, modules=f"{name}$")(parents, SEED).modules[name]
    rank_r = recompressed.scaling * recompressed.b @ recompressed.a
    return {
        "factorwise_error": round(float((average - exact).norm() / exact.norm()), 3),
        "recompressed_error": round(float((rank_r - exact).norm() / exact.norm()), 3),
    }


class PopuloraPeer:
    """The package's spectral mutation through its public interface, on our factors."""

    def __init__(self, adapter: AdapterWeights):
        from populora import Population  # pyright: ignore[reportMissingImports]

        base = nn.Sequential(*(self._weightless(module) for module in adapter.modules.values()))
        targets = [str(index) for index in range(len(adapter.modules))]
        self.population = Population(base, pop_size=1, low_rank=RANK, lora_targets=targets, seed=SEED)
        self._names = list(adapter.modules)
        self.load(adapter)

    def load(self, adapter: AdapterWeights) -> None:
        down, up = self._weights()
        for index, module in enumerate(adapter.modules.values()):
            down[str(index)].copy_(module.a.T)
            up[str(index)].copy_(module.b)

    def mutate(self, epsilon: float) -> None:
        self.population.mutate_("svd_structured", all_individuals=True, epsilon=epsilon)

    def adapter(self) -> AdapterWeights:
        down, up = self._weights()
        modules = {
            name: LoraFactors(down[str(index)].T, up[str(index)], ALPHA / RANK)
            for index, name in enumerate(self._names)
        }
        return AdapterWeights(modules, RANK, ALPHA)

    def _weights(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        return self.population.individual_weights(0)[1]

    @staticmethod
    def _weightless(module: LoraFactors) -> nn.Linear:
        """A linear layer of the right shape whose weight takes no memory."""
        layer = nn.Linear(1, 1, bias=False)
        layer.in_features, layer.out_features = module.a.shape[1], module.b.shape[0]
        layer.weight = nn.Parameter(torch.zeros(1, 1).expand(layer.out_features, layer.in_features))
        return layer


if __name__ == "__main__":
    main()
