"""A vLLM engine with the population's worker extension, set up as a run on a CPU sets it up, in its own process."""

# vLLM carries loose types.
# pyright: reportArgumentType=false

import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import get_context
from typing import Any

import torch

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_populora.engine.platform_cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TORCH_COMPILE_DISABLE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": str(os.cpu_count()),
}


class EngineProcess:
    """Starts the engine; use as a context manager. Commands block until the engine has answered.

    Args:
        model: a model folder.
        adapters: LoRA slots that are filled; 0 starts vLLM without LoRA.
        own_operators: False leaves vLLM's CPU LoRA operators in place.
    """

    def __init__(self, model: str, adapters: int, rank: int = 8, own_operators: bool = True) -> None:
        os.environ.update(ENVIRONMENT)
        context = get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, model, adapters, rank, own_operators)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        other.close()
        self._connection.recv()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.send(None)
        self._process.join(timeout=10)
        self._process.kill()

    def send(self, command: tuple | None) -> None:
        self._connection.send(command)

    def receive(self) -> Any:
        return self._connection.recv()

    def install(self, stream: Sequence[tuple[str, torch.Tensor]], description: Mapping[int, Any]) -> None:
        """Install adapters without the wire; arguments as ``PopulationWorkerExtension._update_weights`` takes them."""
        self.send(("install", list(stream), dict(description)))
        self.receive()

    def generate(self, adapter_ids: Sequence[int], tokens: int, prompt_tokens: int) -> tuple[float, float]:
        """Sample ``tokens`` tokens for each request, with log-probabilities and a seed of its own as in a run.

        Args:
            adapter_ids: the adapter of each request; 0 is the base.

        Returns:
            Wall-clock and processor seconds.
        """
        self.send(("generate", list(adapter_ids), tokens, prompt_tokens))
        return self.receive()


def random_adapters(model: str, count: int, rank: int = 8) -> tuple[list[tuple[str, torch.Tensor]], dict[int, Any]]:
    """Weight stream and description of ``count`` adapters, ids from 1, that differ from the base and each other."""
    from transformers import AutoModelForCausalLM

    from verl_populora.adapters.multi_lora import MultiLora, MultiLoraConfig
    from verl_populora.engine import wire

    names = tuple(f"student{i + 1}" for i in range(count))
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    multi = MultiLora.inject(base, MultiLoraConfig(names, rank, 2.0 * rank, target_modules=TARGETS), seed=0)
    generator = torch.Generator().manual_seed(0)
    stream, description = [], {}
    for adapter_id, name in enumerate(names, 1):
        description[adapter_id] = {"seat": name, "version": 0, "config": multi.peft_config(name)}
        for key, tensor in multi.export(name).items():
            value = tensor if "lora_A" in key else 0.02 * torch.randn(tensor.shape, generator=generator)
            stream.append((wire.pack(adapter_id, key), value))
    return stream, description


def _serve(connection: Any, model: str, adapters: int, rank: int, own_operators: bool) -> None:
    import verl  # noqa: F401  (loads the CPU platform)
    from vllm import LLM

    from verl_populora.engine import cpu_lora

    if not own_operators:
        cpu_lora.install = lambda: None
    slots = adapters + 1
    lora = {"enable_lora": True, "max_loras": slots, "max_cpu_loras": slots, "max_lora_rank": rank}
    engine = LLM(
        model=model,
        dtype="float32",
        max_model_len=448,
        max_num_seqs=128,
        max_num_batched_tokens=4096,
        enable_chunked_prefill=False,
        enforce_eager=True,
        skip_tokenizer_init=True,
        seed=0,
        worker_extension_cls="verl_populora.engine.worker_extension.PopulationWorkerExtension",
        **(lora if adapters else {}),
    )
    commands: dict[str, Callable] = {"install": _install, "generate": _generate, "synchronise": _synchronise}
    connection.send("ready")
    while (command := connection.recv()) is not None:
        name, *arguments = command
        connection.send(commands[name](engine, *arguments))


def _install(engine: Any, stream: list, description: dict) -> None:
    engine.collective_rpc(lambda worker: worker._update_weights(stream, {"population": description}, True))


def _generate(engine: Any, adapter_ids: list[int], tokens: int, prompt_tokens: int) -> tuple[float, float]:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    rng = random.Random(0)
    vocabulary = engine.llm_engine.model_config.get_vocab_size()
    prompts = [{"prompt_token_ids": [rng.randrange(10, vocabulary) for _ in range(prompt_tokens)]} for _ in adapter_ids]
    sampling = [
        SamplingParams(max_tokens=tokens, ignore_eos=True, seed=i, logprobs=0, detokenize=False)
        for i in range(len(adapter_ids))
    ]
    # The version in the name is new each time, so that no prompt is found in the prefix cache.
    version = time.monotonic_ns()
    requests = [LoRARequest(f"a{i}@{version}", i, "memory") if i else None for i in adapter_ids]
    started = time.perf_counter(), time.process_time()
    outputs = engine.generate(prompts, sampling, lora_request=requests if any(adapter_ids) else None, use_tqdm=False)
    elapsed = time.perf_counter() - started[0], time.process_time() - started[1]
    assert all(len(output.outputs[0].token_ids) == tokens for output in outputs)
    return elapsed


def _synchronise(engine: Any, peft_config: dict) -> list[dict]:
    """What verl's rollout does on the receiving side of a synchronisation; returns the engine's receipts."""
    engine.collective_rpc(
        "update_weights_from_ipc", kwargs={"peft_config": peft_config, "base_sync_done": True, "use_shm": True}
    )
    return engine.collective_rpc("population_receipts")[0]
