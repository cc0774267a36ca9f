"""verl's FSDP engine that trains every member of a population on one resident base.

One micro-batch may hold samples of several adapters: they share the forward and backward pass of the base and meet
only their own LoRA factors. Each adapter has its own parameters, its own AdamW state and its own gradient scale and
clipping, so training N adapters together equals training each one alone on its own samples.
"""

# verl and TransferQueue carry no types.
# pyright: reportAttributeAccessIssue=false, reportCallIssue=false

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from tensordict import TensorDict
from torch.distributed.tensor import DTensor
from verl.utils.device import get_device_id
from verl.utils.fsdp_utils import fsdp2_clip_grad_norm_
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead

from verl_populora.adapters.multi_lora import Layout, MultiLora, MultiLoraConfig
from verl_populora.engine import wire
from verl_populora.engine.delivery import AdapterReceipt, checksum
from verl_populora.engine.entropy import EntropyBonus
from verl_populora.layout import PopulationLayout
from verl_populora.members import GUEST

ENGINE_VENDOR = "populora"  # chosen with the environment variable VERL_ENGINE_VENDOR


class NonFiniteWeights(RuntimeError):
    """A member's weights are NaN or infinite after an update."""


class PopulationEngine(FSDPEngineWithLMHead):
    """FSDP2 engine with one set of LoRA factors for each seat of the population."""

    lora: MultiLora

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.engine_config.strategy != "fsdp2":
            raise ValueError(f"a population trains with strategy=fsdp2, not {self.engine_config.strategy!r}")
        if self.ulysses_sequence_parallel_size > 1:
            raise ValueError(
                "ulysses_sequence_parallel_size > 1 splits samples over ranks, which adapters chosen by sample do not "
                "support; set it to 1"
            )
        self.layout = PopulationLayout.from_model_config(self.model_config)
        self.versions = dict.fromkeys(self.layout.seats, 0)
        self._guest: tuple[int, dict[str, torch.Tensor]] | None = None  # version and PEFT state of the guest
        self._sent: dict[str, AdapterReceipt] = {}  # what the rollout was given last
        self._scales: dict[str, float] = {}
        self._norms: dict[str, float] = {}
        self._base_only = False

    # ---- construction -------------------------------------------------------------------------------------------

    def _build_lora_module(self, module: torch.nn.Module) -> torch.nn.Module:
        module.enable_input_require_grads()
        model = self.model_config
        options = model.lora or {}
        targets = model.target_modules
        layers = options.get("layers_to_transform")
        self.lora = MultiLora.inject(
            module,
            MultiLoraConfig(
                names=self.layout.seats,
                rank=model.lora_rank,
                alpha=model.lora_alpha,
                target_modules=targets if isinstance(targets, str) else tuple(targets),
                exclude_modules=None if model.exclude_modules is None else tuple(model.exclude_modules),
                layers_to_transform=None if layers is None else tuple(layers),
            ),
            seed=int(options.get("population_seed", 0)),
        )
        return module

    def _build_optimizer(self, module: torch.nn.Module) -> torch.optim.Optimizer:
        rates = (self.model_config.lora or {}).get("learning_rates") or {}
        groups = []
        for seat, role in zip(self.layout.seats, self.layout.roles, strict=True):
            group: dict[str, Any] = {"params": self.lora.parameters_of(seat), "seat": seat}
            if rates.get(str(role)) is not None:
                group["lr"] = float(rates[str(role)])
            # A scheduler may start at 0, so that the present rate does not tell.
            group["frozen"] = group.get("lr") == 0.0
            groups.append(group)
        return build_optimizer(groups, self.optimizer_config)

    # ---- forward and backward -----------------------------------------------------------------------------------

    def forward_step(self, micro_batch: TensorDict, loss_function, forward_only):
        with self.lora.base_only() if self._base_only else self._route(micro_batch):
            return super().forward_step(micro_batch, loss_function, forward_only)

    def _route(self, micro_batch: TensorDict):
        slots = self._slots(micro_batch["adapter_id"])
        if not self.use_remove_padding:
            return self.lora.route(slots, layout=Layout.PADDED)
        lengths = micro_batch["input_ids"].offsets().diff().cpu()
        return self.lora.route(slots.repeat_interleave(lengths), layout=Layout.PACKED)

    @contextmanager
    def disable_adapter(self) -> Iterator[None]:
        """Run the frozen base alone (verl's reference policy for a KL term)."""
        self._base_only = True
        try:
            yield
        finally:
            self._base_only = False

    def _slots(self, adapter_ids: torch.Tensor) -> torch.Tensor:
        """Position of each row's adapter in the layout, shape (rows,).

        Raises:
            ValueError: a row names an adapter that no seat has.
        """
        index = {adapter_id: slot for slot, adapter_id in enumerate(self.layout.adapter_ids)}
        unknown = sorted(set(adapter_ids.flatten().tolist()) - set(index))
        if unknown:
            raise ValueError(f"samples name adapters {unknown}; the seats are {dict(self.layout.ids())}")
        return torch.tensor([index[int(i)] for i in adapter_ids.flatten().tolist()], dtype=torch.long)

    # ---- optimiser ----------------------------------------------------------------------------------------------

    def train_batch(self, data: TensorDict, loss_function: Callable) -> Any:
        config = loss_function.keywords["config"]
        self._scales = self._gradient_scales(data, config.loss_agg_mode)
        if extra := self._entropy_coefficients(config.entropy_coeff):
            loss_function = EntropyBonus(loss_function, extra)
        outputs = super().train_batch(data, loss_function)
        for seat, norm in self._norms.items():
            # Lists, because verl chains the lists of all data-parallel ranks.
            outputs["metrics"][f"member/{seat}/grad_norm"] = [norm]
            outputs["metrics"][f"member/{seat}/skipped_updates"] = [float(not math.isfinite(norm))]
        return outputs

    def _entropy_coefficients(self, common: float) -> dict[int, float]:
        """What each role's own coefficient adds to the common one, by adapter id; empty if no role has its own."""
        own = (self.model_config.lora or {}).get("entropy_coeff") or {}
        return {
            adapter_id: float(own[str(role)]) - common
            for adapter_id, role in zip(self.layout.adapter_ids, self.layout.roles, strict=True)
            if own.get(str(role)) is not None
        }

    def _gradient_scales(self, data: TensorDict, loss_agg_mode: str) -> dict[str, float]:
        """Factor for the gradient of each seat that has samples in this mini-batch, on any rank.

        verl divides the loss by the tokens (or sequences) of the whole mini-batch; a seat trained alone would divide by
        its own. The parameters of seats are disjoint, so multiplying a seat's gradient by total / own is exact.
        """
        tokens = torch.tensor([float(mask.sum()) for mask in data["loss_mask"].unbind()])
        if loss_agg_mode == "token-mean":
            weights = tokens
        elif loss_agg_mode.startswith("seq-mean"):
            weights = (tokens > 0).float()
        else:
            raise ValueError(f"actor.loss_agg_mode={loss_agg_mode!r} has no per-member normalisation; use token-mean")
        own = torch.zeros(len(self.layout.seats), dtype=torch.float64)
        own.index_add_(0, self._slots(data["adapter_id"]), weights.double())
        own = own.to(get_device_id())
        torch.distributed.all_reduce(own, group=self.get_data_parallel_group())
        total = float(own.sum()) if loss_agg_mode == "token-mean" else float(data["global_batch_size"])
        return {seat: total / n for seat, n in zip(self.layout.seats, own.tolist(), strict=True) if n > 0}

    def optimizer_step(self) -> float:
        """Scale, clip and check each seat's gradient by itself, then step the seats that have a finite one.

        Returns:
            The largest norm before clipping among the seats that are stepped.
        """
        self._norms = {}
        for group in self.optimizer.param_groups:
            seat, parameters = group["seat"], [p for p in group["params"] if p.grad is not None]
            if seat not in self._scales or group["frozen"]:
                _drop_gradients(parameters)  # the seat keeps its weights and its optimiser state
                continue
            for parameter in parameters:
                parameter.grad.mul_(self._scales[seat])
            norm = fsdp2_clip_grad_norm_(parameters, max_norm=self.optimizer_config.clip_grad)
            self._norms[seat] = float(_full(norm))
            if math.isfinite(self._norms[seat]):
                self.versions[seat] += 1
            else:
                _drop_gradients(parameters)
        self.optimizer.step()
        self._check_weights()
        return max(self._norms.values(), default=0.0)

    def _check_weights(self) -> None:
        """Raises NonFiniteWeights, on all ranks, if a seat that was just stepped holds NaN or infinity."""
        groups = [
            group for group in self.optimizer.param_groups if math.isfinite(self._norms.get(group["seat"], math.inf))
        ]
        broken = torch.tensor(
            [float(any(not _local(p).isfinite().all() for p in group["params"])) for group in groups],
            device=get_device_id(),
        )
        torch.distributed.all_reduce(broken)
        seats = [group["seat"] for group, count in zip(groups, broken.tolist(), strict=True) if count]
        if seats:
            raise NonFiniteWeights(
                f"the update gave {', '.join(seats)} weights that are not finite, from finite gradients; the last "
                "checkpoint is older than it. Lower actor_rollout_ref.actor.optim.lr (or population.learning_rates) "
                "before resuming"
            )

    # ---- delivery to the rollout --------------------------------------------------------------------------------

    def get_per_tensor_param(self, layered_summon: bool = False, base_sync_done: bool = False, **kwargs):
        """The tensors of the seats whose version the rollout does not have yet, and their description.

        The base is frozen and loaded by the rollout itself, so it is never sent.
        """
        if not base_sync_done:
            raise ValueError(
                "the rollout must load the base by itself: set actor_rollout_ref.rollout.load_format=safetensors"
            )
        served = {seat: (self.layout.id_of(seat), self.versions[seat]) for seat in self.layout.seats}
        if self._guest is not None and self.layout.guest_id is not None:
            served[GUEST] = self.layout.guest_id, self._guest[0]
        changed = {
            seat: place
            for seat, place in served.items()
            if seat not in self._sent or self._sent[seat].version != place[1]
        }
        # A guest was trained in a seat of this run, so that every seat's configuration is its own.
        config = self.lora.peft_config(self.layout.seats[0])
        description = {
            adapter_id: {"seat": seat, "version": version, "config": config}
            for seat, (adapter_id, version) in served.items()
        }
        return self._stream(changed), {"population": description}

    def _stream(self, places: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, torch.Tensor]]:
        for seat, (adapter_id, version) in places.items():
            state = self._guest[1] if seat == GUEST and self._guest else self.lora.export(seat)
            self._sent[seat] = AdapterReceipt(adapter_id, seat, version, len(state), checksum(state), bound=len(state))
            for name, tensor in state.items():
                yield wire.pack(adapter_id, name), tensor

    def receipts(self) -> list[AdapterReceipt]:
        """What the rollout should hold after the last synchronisation."""
        return list(self._sent.values())

    # ---- members as data ----------------------------------------------------------------------------------------

    def export_member(self, seat: str) -> dict[str, torch.Tensor]:
        """Full PEFT state dict of one seat on the CPU; collective, to be called on every rank."""
        return {name: tensor.cpu() for name, tensor in self.lora.export(seat).items()}

    def set_guest(self, version: int, state: Mapping[str, torch.Tensor]) -> None:
        """Serve these weights in the guest's slot from the next synchronisation on; they are never trained.

        Raises:
            ValueError: they are not the tensors that a seat of this run has.
        """
        expected = {name: parameter.shape for name, parameter in self.lora.named_parameters_of(self.layout.seats[0])}
        if {name: tensor.shape for name, tensor in state.items()} != expected:
            raise ValueError("the guest's adapter has other tensors than this run's members: it is of another run")
        self._guest = version, {name: state[name].to(get_device_id()) for name in expected}

    def export_guest(self) -> dict[str, torch.Tensor]:
        """The guest's PEFT state on the CPU; empty without a guest."""
        return {} if self._guest is None else {name: tensor.cpu() for name, tensor in self._guest[1].items()}

    def replace_member(self, seat: str, state: Mapping[str, torch.Tensor]) -> None:
        """Put new weights into a seat: fresh optimiser state, next version; collective."""
        self.lora.load(seat, state)
        for _, parameter in self._optimised(seat):
            self.optimizer.state.pop(parameter, None)
        self.versions[seat] += 1

    def export_optimizer(self, seat: str) -> dict[str, torch.Tensor]:
        """Full optimiser state of one seat as ``<tensor name>/<slot>``; empty before its first update; collective."""
        return {
            f"{name}/{slot}": _full(value).detach().cpu().clone()
            for name, parameter in self._optimised(seat)
            for slot, value in self.optimizer.state.get(parameter, {}).items()
        }

    def load_optimizer(self, seat: str, flat: Mapping[str, torch.Tensor]) -> None:
        """Restore what export_optimizer returned, on any number of ranks; collective.

        Raises:
            KeyError: the state names a tensor that this seat does not have.
        """
        parameters = dict(self._optimised(seat))
        for parameter in parameters.values():
            self.optimizer.state.pop(parameter, None)
        for key, value in flat.items():
            name, slot = key.rsplit("/", 1)
            self.optimizer.state[parameters[name]][slot] = _like(value, parameters[name])

    def _optimised(self, seat: str) -> list[tuple[str, torch.nn.Parameter]]:
        """Names and parameters of a seat as the optimiser knows them: the sharded ones, also after a forward pass."""
        names = [name for name, _ in self.lora.named_parameters_of(seat)]
        group = next(group for group in self.optimizer.param_groups if group["seat"] == seat)
        return list(zip(names, group["params"], strict=True))

    # ---- checkpoints are written by member, see worker.py -------------------------------------------------------

    def save_checkpoint(self, *args, **kwargs) -> None:
        raise NotImplementedError("a population is saved by member: PopulationWorker.save_members")

    def load_checkpoint(self, *args, **kwargs) -> None:
        raise NotImplementedError("a population is loaded by member: PopulationWorker.load_members")


def _drop_gradients(parameters: list[torch.nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _local(value: torch.Tensor) -> torch.Tensor:
    return value.to_local() if isinstance(value, DTensor) else value


def _full(value: torch.Tensor) -> torch.Tensor:
    if not isinstance(value, DTensor):
        return value
    # An offloaded shard is gathered where the mesh is: its collectives run there.
    return value.to(value.device_mesh.device_type).full_tensor()


def _like(value: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """``value`` laid out as ``parameter`` is; scalars (AdamW's step) stay as they are."""
    if value.dim() == 0:
        return value.clone()
    if isinstance(parameter, DTensor):
        from torch.distributed.tensor import distribute_tensor

        value = value.to(parameter.to_local().device)
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    return value.to(parameter.device, copy=True)


for _device in ("cpu", "cuda"):
    EngineRegistry.register(model_type="language_model", backend="fsdp2", device=_device, vendor=ENGINE_VENDOR)(
        PopulationEngine
    )
