"""Sampling from a causal LM in this process, batched, with a key-value cache. Small models only."""

from collections.abc import Sequence
from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

COMPACT_BELOW = 0.85
"""Finished rows leave the batch when less than this share of it still runs."""


class Sampler:
    """Samples completions of chat prompts.

    Args:
        folder: a model folder with its tokenizer and chat template.
        seed: of the sampler's own random stream.
        adapter: a PEFT folder that is merged into the model.
    """

    def __init__(self, folder: Path, seed: int = 0, adapter: Path | None = None):
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        if adapter is not None:
            model = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
        self._model = model.eval()
        self._generator = torch.Generator().manual_seed(seed)

    def prompt(self, messages: list[dict[str, str]]) -> str:
        """The prompt's text, up to where the completion begins."""
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert isinstance(text, str)
        return text

    @torch.inference_mode()
    def sample(self, prompts: Sequence[str], count: int, max_tokens: int, temperature: float = 1.0) -> list[list[str]]:
        """``count`` completions of each prompt, without the end token; temperature 0 is greedy decoding."""
        tokens = self._generate(prompts, count, max_tokens, temperature)
        texts = self.tokenizer.batch_decode(tokens, skip_special_tokens=True)
        return [texts[first : first + count] for first in range(0, len(texts), count)]

    def _generate(self, prompts: Sequence[str], count: int, max_tokens: int, temperature: float) -> list[list[int]]:
        attention, positions, cache, logits = self._read(prompts)
        cache.batch_repeat_interleave(count)
        logits, attention, positions = (tensor.repeat_interleave(count, 0) for tensor in (logits, attention, positions))
        completions: list[list[int]] = [[] for _ in range(len(logits))]
        rows = torch.arange(len(logits))
        running = torch.ones(len(logits), dtype=torch.bool)
        for step in range(max_tokens):
            chosen = self._choose(logits, temperature)
            for row, token, runs in zip(rows.tolist(), chosen.tolist(), running.tolist(), strict=True):
                if runs:
                    completions[row].append(token)
            running = running & (chosen != self.tokenizer.eos_token_id)
            if not running.any() or step == max_tokens - 1:
                break
            if running.float().mean() < COMPACT_BELOW:
                kept = running.nonzero()[:, 0]
                cache.batch_select_indices(kept)
                rows, attention, positions, chosen = (
                    rows[kept],
                    attention[kept],
                    positions[kept],
                    chosen[kept],
                )
                running = running[kept]
            attention = torch.cat([attention, attention.new_ones(len(rows), 1)], 1)
            positions = positions + 1
            output = self._model(
                input_ids=chosen[:, None],
                attention_mask=attention,
                position_ids=positions[:, None],
                past_key_values=cache,
            )
            logits = output.logits[:, -1]
        return completions

    def _read(self, prompts: Sequence[str]):
        """Attention mask, last positions, cache and next-token logits of left-padded prompts."""
        batch = self.tokenizer(list(prompts), padding=True, padding_side="left", return_tensors="pt")
        attention = batch["attention_mask"]
        positions = (attention.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache()
        output = self._model(
            input_ids=batch["input_ids"],
            attention_mask=attention,
            position_ids=positions,
            past_key_values=cache,
            logits_to_keep=1,
        )
        return attention, positions[:, -1], cache, output.logits[:, -1]

    def _choose(self, logits: torch.Tensor, temperature: float) -> torch.Tensor:
        if temperature == 0:
            return logits.argmax(-1)
        probabilities = torch.softmax(logits.float() / temperature, -1)
        return torch.multinomial(probabilities, 1, generator=self._generator)[:, 0]
