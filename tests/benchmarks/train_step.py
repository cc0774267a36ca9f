"""Cost of an update of eight adapters in one mixed micro-batch: ``python -m tests.benchmarks.train_step``.

An update is forward, backward and AdamW on a random Qwen2 of 50 million parameters in float32 on the CPU,
32 rows in all. Prints one JSON object; the ratios are those of median wall-clock times of variants that take
turns:

- ``mixed_vs_single``: four rows for each of eight adapters / all rows for one adapter.
- ``loop_vs_mixed``: a pass for each adapter over its four rows, then one optimiser step / one mixed pass.
- ``mixed_vs_peft``: one mixed pass / one through PEFT's layers with ``adapter_names`` set by hooks.
- ``shuffled_vs_sorted``: rows of the adapters interleaved / rows of one adapter together.
- ``products_loop_vs_mixed``: the base's bare matrix products (forward, and gradient of the input) in eight parts / at
  once. What ``loop_vs_mixed`` can reach on this machine beyond it is the fixed cost of a pass.

``*_cpu`` are the same ratios of processor time, which other processes on the machine disturb less.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Qwen2Config

from tests.multi_lora_reference import PeftReference, forward_loss, random_model
from verl_populora.adapters.multi_lora import MultiLora, MultiLoraConfig

ROWS = 32
NAMES = tuple(f"member{i}" for i in range(8))
MODEL = Qwen2Config(
    vocab_size=2048,
    hidden_size=512,
    intermediate_size=1792,
    num_hidden_layers=14,
    num_attention_heads=8,
    num_key_value_heads=4,
    tie_word_embeddings=True,
)


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    variants = build_variants(arguments.length, arguments.rank)
    wall, cpu = measure(variants, arguments.repeats)
    ratios = {
        "mixed_vs_single": ("mixed", "single"),
        "loop_vs_mixed": ("loop", "mixed"),
        "mixed_vs_peft": ("mixed", "peft"),
        "shuffled_vs_sorted": ("shuffled", "mixed"),
        "products_loop_vs_mixed": ("products_loop", "products"),
    }
    result: dict[str, Any] = {key: wall[a] / wall[b] for key, (a, b) in ratios.items()}
    result |= {f"{key}_cpu": cpu[a] / cpu[b] for key, (a, b) in ratios.items()}
    result = {key: round(value, 3) for key, value in result.items()}
    result |= {
        "parameters": sum(parameter.numel() for parameter in random_model(MODEL).parameters()),
        "rows": ROWS,
        **vars(arguments),
        "mixed_seconds": round(wall["mixed"], 3),
        "load_average": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(result))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.train_step", description=__doc__)
    parser.add_argument("--length", type=int, default=32, help="tokens in each row")
    parser.add_argument("--rank", type=int, default=8, help="rank of the adapters")
    parser.add_argument("--repeats", type=int, default=3, help="timed rounds over all variants")
    parser.add_argument("--threads", type=int, default=2)
    return parser.parse_args()


def build_variants(length: int, rank: int) -> dict[str, Callable[[], None]]:
    model = random_model(MODEL)
    multi = MultiLora.inject(model, MultiLoraConfig(NAMES, rank, 2.0 * rank), seed=0)
    reference = PeftReference(multi, random_model(MODEL))
    # The fused optimiser makes one call per group; the default makes several per parameter.
    ours = torch.optim.AdamW([{"params": multi.parameters_of(name)} for name in NAMES], fused=True)
    theirs = torch.optim.AdamW([p for p in reference.model.parameters() if p.requires_grad], fused=True)
    ids = torch.randint(MODEL.vocab_size, (ROWS, length), generator=torch.Generator().manual_seed(0))
    by_adapter = torch.arange(ROWS) // (ROWS // len(NAMES))

    def backward(module: nn.Module, rows: Tensor) -> None:
        loss = forward_loss(module, {"input_ids": ids[rows], "labels": ids[rows]})
        (loss / ids.numel()).backward()

    def update(*passes: Tensor) -> None:
        """One optimiser step after a pass for each vector of slots; the passes split the rows among them."""
        first = 0
        for slots in passes:
            with multi.route(slots, layout="padded"):
                backward(model, torch.arange(first, first + len(slots)))
            first += len(slots)
        step(ours)

    def peft() -> None:
        with reference.route([NAMES[slot] for slot in by_adapter.tolist()]):
            backward(reference.model, torch.arange(ROWS))
        step(theirs)

    return {
        "single": lambda: update(torch.zeros_like(by_adapter)),
        "mixed": lambda: update(by_adapter),
        "shuffled": lambda: update(torch.arange(ROWS) % len(NAMES)),
        "loop": lambda: update(*by_adapter.chunk(len(NAMES))),
        "peft": peft,
        "products": base_products(model, ROWS * length),
        "products_loop": base_products(model, ROWS * length // len(NAMES), times=len(NAMES)),
    }


def base_products(model: nn.Module, tokens: int, times: int = 1) -> Callable[[], None]:
    """The matrix products of the frozen weights in an update with ``tokens`` tokens, and nothing else."""
    weights = [parameter.detach() for name, parameter in model.named_parameters() if _is_base_matrix(name, parameter)]
    widths = {size for weight in weights for size in weight.shape}
    rows = {width: torch.randn(tokens, width) for width in widths}

    def run() -> None:
        for _ in range(times):
            for weight in weights:
                torch.mm(rows[weight.shape[1]], weight.t())
            for weight in reversed(weights):
                torch.mm(rows[weight.shape[0]], weight)

    return run


def _is_base_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and "lora_" not in name


def step(optimiser: torch.optim.Optimizer) -> None:
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def measure(variants: dict[str, Callable[[], None]], repeats: int) -> tuple[dict[str, float], dict[str, float]]:
    """Median wall-clock and processor seconds of each variant, after one round that is not counted."""
    wall: dict[str, list[float]] = {name: [] for name in variants}
    cpu: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(repeats + 1):
        print(f"round {round_number} of {repeats}", file=sys.stderr)
        for name, run in variants.items():
            started = time.perf_counter(), time.process_time()
            run()
            if round_number:
                wall[name].append(time.perf_counter() - started[0])
                cpu[name].append(time.process_time() - started[1])
    return (
        {name: statistics.median(values) for name, values in wall.items()},
        {name: statistics.median(values) for name, values in cpu.items()},
    )


if __name__ == "__main__":
    main()
