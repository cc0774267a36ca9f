"""verl's vLLM server with one adapter for each request.

Import this module in a process to make ``rollout.name=vllm`` mean the population server there.
"""

import contextvars

import ray
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind

from verl_populora.engine.delivery import DeliveryError
from verl_populora.layout import PopulationLayout

_current_adapter: contextvars.ContextVar[int | None] = contextvars.ContextVar("adapter", default=None)


class _RoutingEngine:
    """AsyncLLM whose ``generate`` uses the adapter of the current request instead of verl's single one."""

    def __init__(self, engine, server: "PopulationServer"):
        self._engine = engine
        self._server = server

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    async def list_loras(self) -> set[int]:
        return set()  # spares verl's round trip to the engine for each request

    def generate(self, *args, sampling_params: SamplingParams, lora_request=None, **kwargs):
        # verl reads the finished request only, and of it tokens and log-probabilities: without this every token of
        # every request would be made into text and sent on by itself.
        sampling_params.output_kind = RequestOutputKind.FINAL_ONLY
        sampling_params.detokenize = bool(sampling_params.stop)
        return self._engine.generate(
            *args, sampling_params=sampling_params, lora_request=self._server.lora_request(), **kwargs
        )


class PopulationServer(vLLMHttpServer):
    """One vLLM engine that serves every member of the population in one batch."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._versions: dict[int, int] = {}
        self._seats: dict[int, str] = {}

    def _get_worker_extension_cls(self) -> str:
        return "verl_populora.engine.worker_extension.PopulationWorkerExtension"

    async def run_server(self, args) -> None:
        # verl fixes max_loras to 1 after the user's engine arguments. One slot more than members: vLLM's CPU operators
        # index rows without an adapter with -1, the last slot, which therefore has to stay empty.
        slots = PopulationLayout.from_model_config(self.model_config).slots + 1
        args.max_loras = slots
        args.max_cpu_loras = slots
        await super().run_server(args)
        self.engine = _RoutingEngine(self.engine, self)

    async def generate(self, *args, adapter_id: int | None = None, **kwargs):
        """verl's generate for one adapter.

        Raises:
            ValueError: no adapter id (a request without one is never the base by accident), or an unknown one.
        """
        if adapter_id is None:
            raise ValueError("a rollout request has no adapter id; every request of a population names its member")
        if adapter_id not in self._versions:
            raise ValueError(f"adapter {adapter_id} is not loaded; the engine has {sorted(self._versions)}")
        # Each actor call runs in its own asyncio task, so the variable is private to this request.
        _current_adapter.set(adapter_id)
        output = await super().generate(*args, **kwargs)
        output.extra_fields["adapter_id"] = adapter_id
        output.extra_fields["adapter_version"] = self._versions[adapter_id]
        return output

    def lora_request(self) -> LoRARequest:
        """vLLM's request object for the current request's adapter.

        The name carries the version because vLLM keys its prefix cache by it: blocks made with an older version are
        never hit again, and the cache need not be cleared when adapters change.
        """
        adapter_id = _current_adapter.get()
        if adapter_id is None:
            raise RuntimeError("a request reached the engine without passing PopulationServer.generate")
        name = f"{self._seats[adapter_id]}@{self._versions[adapter_id]}"
        return LoRARequest(lora_name=name, lora_int_id=adapter_id, lora_path="memory")

    async def clear_kv_cache(self) -> None:
        """Called by verl after each weight synchronisation; reads back what the engine holds.

        The cache itself stays: the base never changes and adapters are told apart by version.
        """
        if self.node_rank != 0:
            return
        await self.population_receipts()

    async def population_receipts(self) -> list[dict]:
        """The adapters that every worker of this engine holds.

        Raises:
            DeliveryError: the engine's workers disagree.
        """
        if self.node_rank != 0:
            return []
        per_worker = await self.engine.collective_rpc("population_receipts")
        if any(receipts != per_worker[0] for receipts in per_worker[1:]):
            raise DeliveryError(f"workers of rollout replica {self.replica_rank} hold different adapters: {per_worker}")
        for receipt in per_worker[0]:
            self._versions[receipt["adapter_id"]] = receipt["version"]
            self._seats[receipt["adapter_id"]] = receipt["seat"]
        return per_worker[0]


class PopulationReplica(vLLMReplica):
    """A replica made of PopulationServers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(PopulationServer)


RolloutReplicaRegistry.register("vllm", lambda: PopulationReplica)
