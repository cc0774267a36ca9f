"""Runs inside each vLLM worker process: installs the population's adapters from one stream of tensors."""

# verl and TransferQueue carry no types.
# pyright: reportAttributeAccessIssue=false

from dataclasses import asdict, replace

from verl.utils.vllm import TensorLoRARequest
from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

from verl_populora.engine import cpu_lora, wire
from verl_populora.engine.delivery import AdapterReceipt, checksum


class PopulationWorkerExtension(vLLMColocateWorkerExtension):
    """verl's worker extension that knows several adapters.

    The stream carries only adapters whose version changed; ``peft_config`` describes them:
    ``{"population": {adapter_id: {"version": int, "seat": str, "config": PEFT config}}}``.
    """

    def __new__(cls, **kwargs):
        cpu_lora.install()
        return super().__new__(cls, **kwargs)

    def _update_weights(self, weights, peft_config, base_sync_done):
        if not (base_sync_done and peft_config and "population" in peft_config):
            return super()._update_weights(weights, peft_config, base_sync_done)
        incoming: dict[int, dict] = {}
        for key, tensor in weights:
            adapter_id, name = wire.unpack(key)
            # verl hands over copies of its own; on a GPU one more would be as large as all members together.
            incoming.setdefault(adapter_id, {})[name] = tensor
        for adapter_id, tensors in incoming.items():
            self._install(adapter_id, tensors, peft_config["population"][adapter_id])
        # vLLM before 0.28 rebuilds slot metadata only when the mapping of requests changes, not when slots move.
        self._lora_manager()._last_mapping = None

    def _install(self, adapter_id: int, tensors: dict, description: dict) -> None:
        receipt = AdapterReceipt(
            adapter_id=adapter_id,
            seat=description["seat"],
            version=description["version"],
            tensors=len(tensors),
            checksum=checksum(tensors),
            bound=0,
        )
        self.add_lora(
            TensorLoRARequest(
                lora_name=f"{description['seat']}@{description['version']}",
                lora_int_id=adapter_id,
                lora_path="memory",
                load_inplace=True,  # without it a loaded id is silently left as it is
                peft_config=description["config"],
                lora_tensors=tensors,
            )
        )
        self._receipts()[adapter_id] = receipt

    def population_receipts(self) -> list[dict]:
        """The adapters that this worker holds, as plain dicts of AdapterReceipt's fields."""
        return [
            asdict(replace(receipt, bound=self._count_bound(receipt.adapter_id)))
            for receipt in self._receipts().values()
        ]

    def _receipts(self) -> dict[int, AdapterReceipt]:
        if not hasattr(self, "_population_receipts"):
            self._population_receipts: dict[int, AdapterReceipt] = {}
        return self._population_receipts

    def _lora_manager(self):
        return self.model_runner.lora_manager._adapter_manager

    def _count_bound(self, adapter_id: int) -> int:
        """How many of the adapter's tensors belong to a module that the engine has wrapped for LoRA.

        A merged projection (qkv, gate_up) holds its parts as a list, in which a missing part is None.
        """
        manager = self._lora_manager()
        model = manager.get_adapter(adapter_id)
        if model is None:
            return 0
        count = 0
        for name, weights in model.loras.items():
            if name not in manager.modules:
                continue
            parts = weights.lora_a if isinstance(weights.lora_a, list) else [weights.lora_a]
            count += 2 * sum(part is not None for part in parts)
        return count
