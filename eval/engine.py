"""One vLLM engine for the base and all adapters: requests of every member in one stream.

The base is a member like the others. Some vLLM versions give a request without an adapter the weights in the last
adapter slot, so one slot more than adapters is kept empty, and ``check_routing`` measures that the base is the base.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from eval.members import EvalMember
from eval.types import Completion, Sampling

_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
_CANARY_TOKENS = 48
# Mean absolute difference in prompt log-probability (nats) between a lone and a mixed batch that rounding explains.
_TOLERANCE = {"float32": 1e-4, "bfloat16": 3e-2, "float16": 1e-2}


class RoutingError(RuntimeError):
    """The engine applies an adapter to requests that asked for none."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How vLLM is started; ``max_model_len`` 0 takes the model's own, at most 32,768."""

    dtype: str = "auto"
    max_model_len: int = 0
    tensor_parallel: int = 1
    gpu_memory: float = 0.9
    max_num_seqs: int = 256
    trust_remote_code: bool = False


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenised request."""

    key: str
    member: str
    token_ids: list[int]
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Routing:
    """What ``check_routing`` found. Differences are mean absolute ones from the lone base, in nats."""

    base_difference: float
    adapter_differences: dict[str, float]  # by member; 0.0 means that the adapter changed nothing measurable


def prepare_environment() -> bool:
    """Settings that vLLM reads at import. Returns whether this machine computes on the CPU."""
    import torch

    on_cpu = not torch.cuda.is_available()
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if on_cpu:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    return on_cpu


class Engine:
    def __init__(self, model: str, revision: str | None, members: list[EvalMember], settings: EngineSettings) -> None:
        on_cpu = prepare_environment()
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        adapters = [member for member in members if member.adapter]
        lora_options: dict[str, Any] = {}
        if adapters:
            rank = max(member.rank for member in adapters)
            fitting = [size for size in _RANKS if size >= rank]
            if not fitting:
                raise ValueError(f"LoRA rank {rank} is larger than vLLM's maximum, {_RANKS[-1]}")
            slots = len(adapters) + 1
            lora_options = {
                "enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": fitting[0]
            }  # fmt: skip
        self._llm = LLM(
            model=model,
            revision=revision,
            dtype=settings.dtype,  # pyright: ignore[reportArgumentType]
            max_model_len=settings.max_model_len or None,
            tensor_parallel_size=settings.tensor_parallel,
            gpu_memory_utilization=settings.gpu_memory,
            max_num_seqs=settings.max_num_seqs,
            enforce_eager=on_cpu,
            trust_remote_code=settings.trust_remote_code,
            enable_prefix_caching=True,
            seed=0,
            **lora_options,
        )
        self._window = 4 * settings.max_num_seqs
        self._loras: dict[str, Any] = {member.name: None for member in members}
        for index, member in enumerate(adapters, 1):
            name = f"{index}-{member.adapter_sha256[:12]}"
            self._loras[member.name] = LoRARequest(name, index, member.adapter)

    @property
    def dtype(self) -> str:
        return str(self._llm.llm_engine.model_config.dtype).removeprefix("torch.")

    def stream(self, prompts: Iterable[Prompt]) -> Iterator[Completion]:
        """Completions as they finish, not in the order of the prompts."""
        from vllm import RequestOutput, SamplingParams

        engine = self._llm.llm_engine
        waiting = iter(prompts)
        lengths: dict[str, int] = {}
        exhausted = False
        while True:
            while not exhausted and len(lengths) < self._window:
                prompt = next(waiting, None)
                if prompt is None:
                    exhausted = True
                    break
                sampling = prompt.sampling
                params = SamplingParams(
                    temperature=sampling.temperature,
                    top_p=sampling.top_p,
                    max_tokens=sampling.max_tokens,
                    stop=list(sampling.stop),
                    seed=sampling.seed if sampling.temperature > 0 else None,
                )
                lengths[prompt.key] = len(prompt.token_ids)
                engine.add_request(
                    prompt.key,
                    {"prompt_token_ids": prompt.token_ids},
                    params,
                    lora_request=self._loras[prompt.member],
                )
            if not lengths:
                return
            for output in engine.step():
                if not output.finished:
                    continue
                key = output.request_id
                choice = cast(RequestOutput, output).outputs[0]
                prompt_tokens = lengths.pop(key)
                reason = choice.finish_reason or "stop"
                yield Completion(key, choice.text, reason, prompt_tokens, len(choice.token_ids))

    def check_routing(self, token_ids: list[int]) -> Routing:
        """Compare the base alone with the base among all adapters. Raises RoutingError if it is not itself."""
        token_ids = token_ids[:_CANARY_TOKENS]
        names = [name for name, lora in self._loras.items() if lora is not None]
        alone = self._prompt_logprobs(token_ids, [None])[0]
        mixed = self._prompt_logprobs(token_ids, [None, *(self._loras[name] for name in names)])
        differences = [
            sum(abs(a - b) for a, b in zip(alone, other, strict=True)) / max(1, len(alone)) for other in mixed
        ]
        tolerance = _TOLERANCE.get(self.dtype, 3e-2)
        if differences[0] > tolerance:
            raise RoutingError(
                f"in a batch with adapters the base's log-probabilities move by {differences[0]:.3g} nats on average "
                f"(at most {tolerance:g} for {self.dtype}): vLLM applies an adapter to requests without one"
            )
        return Routing(differences[0], dict(zip(names, differences[1:], strict=True)))

    def _prompt_logprobs(self, token_ids: list[int], loras: list[Any]) -> list[list[float]]:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
        prompts: Any = [{"prompt_token_ids": token_ids}] * len(loras)
        outputs = self._llm.generate(prompts, params, lora_request=loras, use_tqdm=False)
        rows = []
        for output in outputs:
            rows.append(
                [
                    entry[token].logprob
                    for token, entry in zip(token_ids, output.prompt_logprobs or [], strict=True)
                    if entry is not None
                ]
            )
        return rows
