"""The Ray worker that holds the population: verl's hybrid worker with members that can be saved, loaded and bred.

Importing this module (Ray does, to unpickle the class) registers the population's engine and rollout in the process.
"""

# verl and TransferQueue carry no types.
# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportReturnType=false

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker

import verl_populora.engine.rollout  # noqa: F401  (registers the population's vLLM server)
from verl_populora.adapters.initial import read_initial
from verl_populora.adapters.peft_io import from_state_dict, read_peft, to_state_dict, write_peft
from verl_populora.adapters.weights import AdapterWeights
from verl_populora.engine.actor import PopulationEngine
from verl_populora.evolution.diversity import diversity
from verl_populora.evolution.hall_of_fame import HallOfFame
from verl_populora.evolution.lineage import make_child
from verl_populora.evolution.population import Birth
from verl_populora.members import Member
from verl_populora.selfplay.ratings import Rating

ENGINE_STATE = "engine.json"


class PopulationWorker(ActorRolloutRefWorker):
    """One training rank. Methods are collective: the trainer calls them on all ranks."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self):
        super().init_model()
        if not isinstance(self.actor.engine, PopulationEngine):
            raise RuntimeError(
                f"verl chose {type(self.actor.engine).__name__} as the training engine, not PopulationEngine; "
                "VERL_ENGINE_VENDOR must be 'populora' in every worker (the entry point sets it)"
            )

    @property
    def _engine(self) -> PopulationEngine:
        return self.actor.engine

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sent_adapters(self) -> list[dict[str, Any]]:
        """AdapterReceipts of the last synchronisation, as dicts."""
        return [asdict(receipt) for receipt in self._engine.receipts()]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def versions(self) -> dict[str, int]:
        return dict(self._engine.versions)

    # ---- evolution ----------------------------------------------------------------------------------------------

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def breed(self, births: Sequence[Birth], seats: Mapping[str, str]) -> dict[str, int]:
        """Replace members by children of the present ones; every rank computes the same bits.

        Args:
            births: what to make; parents are member names.
            seats: member name -> seat, for all living members.

        Returns:
            Version of every seat afterwards.

        Raises:
            ValueError: a parent is not the version that the plan saw.
        """

        def parent(name: str, version: int) -> AdapterWeights:
            seat = seats[name]
            if self._engine.versions[seat] != version:
                raise ValueError(
                    f"{name} has version {self._engine.versions[seat]}, its child was planned for {version}"
                )
            return self._weights(seat)

        children = {birth.seat: make_child(birth.lineage, parent) for birth in births}
        for seat, child in children.items():
            self._engine.replace_member(seat, to_state_dict(child))
        return dict(self._engine.versions)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def honour(self, folder: str, capacity: int, entries: Sequence[tuple[Member, float, Rating]], step: int) -> None:
        """Offer members, with their fitness and rating, to the hall of fame in ``folder``."""
        for member, fitness, rating in entries:
            weights = self._weights(member.seat)
            if self._is_first:
                hall = HallOfFame(folder, capacity, self._engine.model_config.path)
                hall.consider(member, weights, fitness, step, (rating.mu, rating.sigma))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seat_guest(self, adapter: str, version: int) -> None:
        """Serve the PEFT folder ``adapter`` as the guest, from the next synchronisation on."""
        self._engine.set_guest(version, to_state_dict(read_peft(adapter).weights))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_guest(self, adapter: str) -> None:
        """Write the guest as the PEFT folder ``adapter``: the hall of fame may have dropped it when a run resumes."""
        if self._is_first:
            engine, model = self._engine, self._engine.model_config
            weights = from_state_dict(engine.export_guest(), model.lora_rank, model.lora_alpha)
            write_peft(adapter, weights, model.path, engine.lora.peft_config(engine.layout.seats[0]))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def diversity(self, collapse_cosine: float) -> dict[str, Any]:
        """A DiversityReport of all members' updates, as a dict; from the first rank."""
        weights = {seat: self._weights(seat) for seat in self._engine.layout.seats}
        return asdict(diversity(weights, collapse_cosine)) if self._is_first else {}

    def _weights(self, seat: str) -> AdapterWeights:
        model = self._engine.model_config
        return from_state_dict(self._engine.export_member(seat), model.lora_rank, model.lora_alpha)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def found_members(self, folder: str) -> dict[str, dict[str, Any]]:
        """Start members from the adapters in ``folder``; returns where each of them came from, by seat.

        Raises:
            ValueError: an adapter does not fit the model.
        """
        model = self._engine.model_config
        adapters = read_initial(
            Path(folder), self._engine.layout.seats, model.path, model.lora_rank, float(model.lora_alpha)
        )
        for seat, adapter in adapters.items():
            self._engine.lora.load(seat, to_state_dict(adapter.weights))
        return {seat: {"adapter": str(one.folder), "sha256": one.sha256} for seat, one in adapters.items()}

    # ---- checkpoints --------------------------------------------------------------------------------------------

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_members(self, folder: str, names: Mapping[str, str], metadata: Mapping[str, Mapping[str, Any]]) -> None:
        """Write every member as a PEFT folder with its optimiser state; the first rank writes, all take part.

        Layout: ``adapters/<name>/`` (what `peft` and vLLM load), ``optimizer/<name>.safetensors``, ``engine.json``.

        Args:
            folder: an existing directory that the first rank can write.
            names: seat -> member name.
            metadata: seat -> JSON-able facts to keep in the adapter file's header (member record, rating).

        Raises:
            OSError: the folder could not be written; on every rank, so that none waits for another.
        """
        root, failure = Path(folder), None
        for seat, name in names.items():
            state, moments = self._engine.export_member(seat), self._engine.export_optimizer(seat)
            # After a failure the first rank still takes part in the exports of the others.
            if self._is_first and failure is None:
                try:
                    self._write_member(root, seat, name, state, moments, metadata[seat])
                except (OSError, SafetensorError) as error:
                    failure = error
        if self._is_first and failure is None:
            try:
                self._write_engine_state(root)
            except OSError as error:
                failure = error
        if _anywhere(failure is not None):
            raise OSError(f"can't write to {root}: {failure or 'see the first rank'}") from failure

    def _write_member(
        self,
        root: Path,
        seat: str,
        name: str,
        state: Mapping[str, torch.Tensor],
        moments: dict[str, torch.Tensor],
        metadata: Mapping[str, Any],
    ) -> None:
        model = self._engine.model_config
        write_peft(
            root / "adapters" / name,
            from_state_dict(state, model.lora_rank, model.lora_alpha),
            base_model_name=model.path,
            config_extra=self._engine.lora.peft_config(seat),
            metadata={"populora": json.dumps(metadata)},
        )
        (root / "optimizer").mkdir(exist_ok=True)
        save_file(moments, root / "optimizer" / f"{name}.safetensors")

    def _write_engine_state(self, root: Path) -> None:
        engine = self._engine
        scheduler = {k: v for k, v in engine.lr_scheduler.state_dict().items() if k != "lr_lambdas"}
        state = {"versions": engine.versions, "scheduler": scheduler}
        (root / ENGINE_STATE).write_text(json.dumps(state, indent=2))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_members(self, folder: str, names: Mapping[str, str]) -> None:
        """Restore what save_members wrote, on any number of ranks."""
        engine, root = self._engine, Path(folder)
        for seat, name in names.items():
            engine.lora.load(seat, to_state_dict(read_peft(root / "adapters" / name).weights))
            engine.load_optimizer(seat, load_file(root / "optimizer" / f"{name}.safetensors"))
        state = json.loads((root / ENGINE_STATE).read_text())
        engine.versions.update(state["versions"])
        engine.lr_scheduler.load_state_dict(engine.lr_scheduler.state_dict() | state["scheduler"])
        torch.distributed.barrier()

    @property
    def _is_first(self) -> bool:
        return torch.distributed.get_rank() == 0


def _anywhere(flag: bool) -> bool:
    """Whether ``flag`` is true on any rank; collective."""
    count = torch.tensor(float(flag), device=get_device_id())
    torch.distributed.all_reduce(count)
    return bool(count)
