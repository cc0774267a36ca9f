"""Completions of the frozen base by vLLM alone, for what needs no training: the seeding stage."""

import os
from collections.abc import Sequence

from omegaconf import DictConfig

from azr_overrides.tasks.parsing import completion_text
from azr_overrides.tasks.prompts import Messages


class OfflineModel:
    """The base model of the composed configuration, with the rollout's sampling.

    Args:
        chat: ``raw`` joins message contents with newlines, ``template`` applies the tokenizer's chat
        template.
    """

    def __init__(self, config: DictConfig, chat: str) -> None:
        if config.trainer.device == "cpu":
            # A second process for the engine only costs on a small machine.
            os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from transformers import AutoTokenizer
        from vllm import LLM

        model, rollout, data = config.actor_rollout_ref.model, config.actor_rollout_ref.rollout, config.data
        self._prompt_length: int = data.max_prompt_length
        self._response_length: int = data.max_response_length
        self._sampling = {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": rollout.top_k}
        self._splitter: str = config.reward_fn.splitter
        self._chat = chat
        self._seed, self._requests = int(config.seed), 0
        self._tokenizer = AutoTokenizer.from_pretrained(model.path, trust_remote_code=model.trust_remote_code)
        self._llm = LLM(
            model=model.path,
            dtype=rollout.dtype,
            max_model_len=rollout.max_model_len or data.max_prompt_length + data.max_response_length,
            tensor_parallel_size=rollout.tensor_model_parallel_size,
            gpu_memory_utilization=rollout.gpu_memory_utilization,
            max_num_seqs=rollout.max_num_seqs,
            enforce_eager=rollout.enforce_eager,
            trust_remote_code=model.trust_remote_code,
            seed=self._seed,
        )

    def generate(self, conversations: Sequence[Messages]) -> list[str]:
        """One completion for each conversation, as it is scored; ``""`` for a prompt that is too long."""
        from vllm import SamplingParams

        texts = [self._text(messages) for messages in conversations]
        tokens = [self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        fitting = [row for row, ids in enumerate(tokens) if len(ids) <= self._prompt_length]
        params = []
        for _ in fitting:
            self._requests += 1
            params.append(
                SamplingParams(
                    **self._sampling, max_tokens=self._response_length, seed=self._seed * 1_000_003 + self._requests
                )
            )
        outputs = self._llm.generate([{"prompt_token_ids": tokens[row]} for row in fitting], params, use_tqdm=False)
        completions = [""] * len(texts)
        for row, output in zip(fitting, outputs, strict=True):
            completions[row] = completion_text(texts[row], output.outputs[0].text, self._splitter)
        return completions

    def _text(self, messages: Messages) -> str:
        if self._chat == "raw":
            return "\n".join(message["content"] for message in messages)
        return self._tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
