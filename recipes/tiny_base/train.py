"""Train the tiny base from scratch on generated documents.

    python -m recipes.tiny_base.train OUT --steps 6000

The data, the learning rates and the curriculum are functions of the seed and the step, so that a stopped run
continues from its last state file with the same command. Until the rates begin to fall, the number of steps
is without influence: a run may be stopped there and continued with another number. OUT receives the model in
bfloat16 and its tokenizer; the folder ``training`` beside it holds the state and the log.
"""

import argparse
import json
import math
import os
import time
from concurrent.futures import Future, ProcessPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from recipes.tiny_base.dataset import KINDS, Chunk, make_chunk
from recipes.tiny_base.tokenizer import EOS, PAD, build_tokenizer, token_id

CHUNK_STEPS = 40


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    steps: int
    seed: int = 0
    rows: int = 12  # rows per step
    length: int = 256  # tokens per row
    hidden_size: int = 128
    layers: int = 5
    heads: int = 4
    intermediate_size: int = 384
    adam_rate: float = 3e-3  # embeddings, norms and biases
    muon_rate: float = 0.02  # weight matrices
    warmup_steps: int = 40
    decay_steps: int = 2000  # last steps, with linearly falling rates
    first_level: float = 0.15
    ramp_steps: int = 900  # first steps, in which the curriculum grows to the full mix
    threads: int = 2
    compile: bool = True

    def rate_scale(self, step: int) -> float:
        """Factor of the learning rates at a step."""
        return min(1.0, (step + 1) / self.warmup_steps, (self.steps - step) / self.decay_steps)

    def level(self, step: int) -> float:
        """Stage of the curriculum at a step, in [0, 1]."""
        return min(1.0, self.first_level + (1 - self.first_level) * step / self.ramp_steps)


def new_model(config: TrainingConfig, tokenizer: PreTrainedTokenizerBase) -> Qwen2ForCausalLM:
    """A randomly initialised Qwen2 whose vocabulary is exactly the tokenizer's."""
    torch.manual_seed(config.seed)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.heads,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
            eos_token_id=token_id(tokenizer, EOS),
            pad_token_id=token_id(tokenizer, PAD),
            bos_token_id=None,
        )
    )


def new_optimizers(model: Qwen2ForCausalLM, config: TrainingConfig) -> list[torch.optim.Optimizer]:
    matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.dim() != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=config.muon_rate, weight_decay=0.01, momentum=0.95, adjust_lr_fn="original"),
        torch.optim.AdamW(others, lr=config.adam_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one step, shape (rows, length); the target of a token is its successor in the same document."""

    ids: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    mask: Tensor  # (rows, 1, length, length), True where attention is allowed
    kinds: Tensor


def batch_of(chunk: Chunk, rows: slice) -> Batch:
    ids = torch.from_numpy(chunk.ids[rows]).long()
    documents = torch.from_numpy(chunk.documents[rows])
    weights = torch.from_numpy(chunk.weights[rows])
    length = ids.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    same_document = documents[:, :-1] == documents[:, 1:]
    return Batch(
        ids=ids,
        targets=F.pad(ids[:, 1:], (0, 1)),
        weights=F.pad(weights[:, 1:] * same_document, (0, 1)),
        positions=torch.from_numpy(chunk.positions[rows]).long(),
        mask=(documents[:, None, :, None] == documents[:, None, None, :]) & causal,
        kinds=torch.from_numpy(chunk.kinds[rows]).long(),
    )


def token_losses(model: Qwen2ForCausalLM, ids: Tensor, targets: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
    """Cross-entropy of every token, shape (rows, length)."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model.model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False)
        logits = F.linear(hidden.last_hidden_state, model.lm_head.weight)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)


class DataStream:
    """Chunks from a worker process, one ahead of the training."""

    def __init__(self, config: TrainingConfig, tokenizer: PreTrainedTokenizerBase):
        self._config = config
        self._tokenizer = tokenizer
        self._pool = ProcessPoolExecutor(1)
        self._pending: dict[int, Future[Chunk]] = {}

    def chunk(self, index: int) -> Chunk:
        for needed in (index, index + 1):
            if needed not in self._pending and needed * CHUNK_STEPS < self._config.steps:
                level = self._config.level(needed * CHUNK_STEPS)
                rows = CHUNK_STEPS * self._config.rows
                self._pending[needed] = self._pool.submit(
                    make_chunk, self._tokenizer, self._config.seed, needed, level, rows, self._config.length
                )
        return self._pending.pop(index).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@dataclass
class Progress:
    """What a state file remembers besides the weights and the optimizers."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def train(config: TrainingConfig, out: Path, save_every: int) -> None:
    """Train for ``config.steps`` steps, or from the state file on, and write the model to ``out``."""
    torch.set_num_threads(config.threads)
    tokenizer = build_tokenizer()
    model = new_model(config, tokenizer)
    optimizers = new_optimizers(model, config)
    folder = out.parent / "training"
    folder.mkdir(parents=True, exist_ok=True)
    progress = load_state(folder / "state.pt", model, optimizers)
    losses = torch.compile(token_losses) if config.compile else token_losses
    stream = DataStream(config, tokenizer)
    try:
        while progress.step < config.steps:
            chunk = stream.chunk(progress.step // CHUNK_STEPS)
            record = run_chunk(config, model, optimizers, losses, chunk, progress)
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(record) + "\n")
            print(record, flush=True)
            if progress.step % save_every < CHUNK_STEPS:
                save_state(folder / "state.pt", model, optimizers, progress)
                save_model(folder / "model_so_far", model, tokenizer)
    finally:
        stream.close()
    save_model(out, model, tokenizer)
    summary = {**asdict(config), **asdict(progress)}
    (folder / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


def run_chunk(config, model, optimizers, losses, chunk: Chunk, progress: Progress) -> dict:
    """Train on one chunk, advance ``progress``, and return what the log records."""
    started = time.perf_counter()
    sums = torch.zeros(2, len(KINDS), dtype=torch.float64)
    for first in range(0, CHUNK_STEPS * config.rows, config.rows):
        if progress.step == config.steps:
            break
        scale = config.rate_scale(progress.step)
        for optimizer, rate in zip(optimizers, (config.muon_rate, config.adam_rate), strict=True):
            optimizer.param_groups[0]["lr"] = rate * scale
        batch = batch_of(chunk, slice(first, first + config.rows))
        loss = losses(model, batch.ids, batch.targets, batch.positions, batch.mask)
        ((loss * batch.weights).sum() / batch.weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        progress.step += 1
        progress.tokens += int((batch.kinds >= 0).sum())
        answered = batch.weights > 0.5
        for index in range(len(KINDS)):
            chosen = answered & (batch.kinds == index)
            sums[0, index] += loss.detach()[chosen].sum()
            sums[1, index] += chosen.sum()
    progress.seconds += time.perf_counter() - started
    mean = {kind.value: round(value, 4) for kind, value in zip(KINDS, (sums[0] / sums[1]).tolist(), strict=True)}
    if not all(math.isfinite(value) for value in mean.values()):
        raise FloatingPointError(f"loss is not finite at step {progress.step}: {mean}")
    rate = round(progress.tokens / progress.seconds)
    return {
        **asdict(progress),
        "level": round(config.level(progress.step), 3),
        "tokens_per_s": rate,
        "loss": mean,
    }


def save_state(path: Path, model, optimizers, progress: Progress) -> None:
    state = {
        "model": model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
        "progress": asdict(progress),
    }
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    os.replace(partial, path)


def load_state(path: Path, model, optimizers) -> Progress:
    """Restore a state file in place; a new ``Progress`` when there is none."""
    if not path.exists():
        return Progress()
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return Progress(**state["progress"])


def save_model(folder: Path, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the model in bfloat16 with its tokenizer; the model in memory keeps its precision."""
    deepcopy(model).bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder of the model")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--decay-steps", type=int, default=2000, help="last steps, with falling learning rates")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=400, help="steps between state files")
    arguments = parser.parse_args()
    config = TrainingConfig(
        steps=arguments.steps,
        decay_steps=arguments.decay_steps,
        seed=arguments.seed,
        threads=arguments.threads,
    )
    train(config, arguments.out, arguments.save_every)


if __name__ == "__main__":
    main()
