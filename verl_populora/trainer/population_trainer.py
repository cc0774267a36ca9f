"""verl's synchronous trainer for a population.

A step reads as the algorithm: plan the episodes of this step, let verl roll them out, absorb what they report, update
every member on its own samples, then replace members, save, and give the rollout what changed. What an episode is and
what it reports is a subclass's business (``plan_episodes``, ``absorb``).
"""

# verl and TransferQueue carry no types.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

import json
import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import ray
import torch
from omegaconf import DictConfig, open_dict
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.debug import marked_timer

from verl_populora.engine.delivery import AdapterReceipt, compare
from verl_populora.engine.worker import PopulationWorker
from verl_populora.evolution.hall_of_fame import HallOfFame
from verl_populora.layout import PopulationLayout
from verl_populora.members import GUEST, Role
from verl_populora.population import Population
from verl_populora.rundir import RunWriter, member_record
from verl_populora.trainer import checkpoints, stopping
from verl_populora.trainer.batch import MemberFigures, check_canary, member_figures

logger = logging.getLogger(__name__)

POPULATION_FILE = "population.json"
TRAINER_FILE = "trainer.json"


class Plan(Protocol):
    """One episode to roll out; travels to the agent loop as it is."""

    @property
    def episode(self) -> str: ...


class PopulationTrainer(PPOTrainerSync):
    """Trains a population; subclasses say what its members do.

    Args:
        config: the resolved run configuration; ``actor_rollout_ref.model.lora.population`` holds the layout.
        population: the members and the rules by which they meet and are replaced.
    """

    def __init__(self, config: DictConfig, population: Population):
        self.population = population
        self.layout: PopulationLayout = population.layout
        self.writer = RunWriter(config.run_dir)
        self.checkpoint_root = Path(config.trainer.default_local_dir)
        self.plans: Sequence[Plan] = ()
        self.figures: dict[str, MemberFigures] = {}
        self._fitness: dict[str, float] = {}  # at the end of the step, before anybody is replaced
        self._save_due = False
        self._staged: Path | None = None  # a checkpoint that waits for its step's metrics
        self._rolled_out = False
        self._extra_metrics: dict[str, float] = {}
        super().__init__(config)

    # ---- what a subclass defines --------------------------------------------------------------------------------

    @abstractmethod
    def plan_episodes(self, step: int) -> Sequence[Plan]:
        """The episodes of a step; at least one, with distinct names without ``_``."""

    @abstractmethod
    def absorb(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        """Take in what the episodes report, before advantages are computed; rewards may still be changed."""

    def derived_metrics(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """More metrics of a step, made of all its other metrics."""
        return {}

    @abstractmethod
    def task_streams(self) -> Sequence[np.random.Generator]:
        """The random streams that ``plan_episodes`` draws from, beside the population's."""

    @abstractmethod
    def task_state(self) -> dict[str, Any]:
        """The subclass's own state, JSON-able."""

    @abstractmethod
    def load_task_state(self, state: Mapping[str, Any]) -> None:
        """Continue from ``task_state``'s result."""

    # ---- set-up -------------------------------------------------------------------------------------------------

    def _init_dataloader(self) -> None:
        """Self-play has no dataset: only the number of steps is known."""
        trainer = self.config.trainer
        self.steps_per_epoch = int(trainer.steps_per_epoch)
        self.total_training_steps = int(trainer.total_training_steps or self.steps_per_epoch * trainer.total_epochs)
        with open_dict(self.config):
            self.config.actor_rollout_ref.actor.optim.total_training_steps = self.total_training_steps
            # verl's loop also ends at total_epochs; here the number of steps alone decides.
            trainer.total_epochs = self.total_training_steps // self.steps_per_epoch + 1

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in self.role_worker_mapping:
            self.role_worker_mapping[role] = ray.remote(PopulationWorker)

    def on_init_end(self) -> None:
        super().on_init_end()
        self._check_delivery()
        if self.global_steps == 0:
            for member in self.population.members.values():
                self.writer.birth(member_record(member))

    # ---- one step -----------------------------------------------------------------------------------------------

    def step(self, metrics: dict, timing_raw: dict) -> KVBatchMeta:
        streams = [g.bit_generator for g in (self.population.match_stream, *self.task_streams())]
        before = [stream.state for stream in streams]
        self._rolled_out = False
        try:
            self.plans = self.plan_episodes(self.global_steps)
            # verl waits for this many prompts; here a prompt is an episode.
            self.config.data.train_batch_size = len(self.plans)
            return super().step(metrics, timing_raw)
        except Exception as error:
            if not self._rolled_out:
                # Nothing else has changed since the last step.
                for stream, state in zip(streams, before, strict=True):
                    stream.state = state
                self._rescue()
            if "no materializable trajectories" not in str(error):
                raise
            raise RuntimeError(
                f"none of the {len(self.plans)} episodes of step {self.global_steps} produced a sample; the rollout "
                "engine or the sandbox is gone. The workers' logs name the cause of every lost sample."
            ) from error

    def _next_train_batch(self, num_prompts: int | None = None) -> TensorDict:
        if num_prompts not in (None, len(self.plans)):
            raise ValueError("episodes are planned by step and can't be refilled; disable algorithm.filter_groups")
        column = np.empty(len(self.plans), dtype=object)
        column[:] = list(self.plans)
        batch = tu.get_tensordict(
            {
                "uid": np.array([plan.episode for plan in self.plans], dtype=object),
                "plan": column,
                "index": np.arange(len(self.plans)),
            }
        )
        tu.assign_non_tensor_data(batch, "global_steps", self.global_steps)
        return batch

    def _get_required_batch_multiple(self, dp_size: int) -> int:
        return dp_size  # one optimiser step on however many samples there are

    def _canary_limits(self) -> tuple[float, float]:
        """Largest and mean probability difference taken for rounding."""
        canary = self.config.population.canary
        exact = self.config.actor_rollout_ref.rollout.dtype == "float32"
        max_gap, mean_gap = (1e-3, 1e-4) if exact else (1.0, 0.05)
        return (
            max_gap if canary.max_gap is None else float(canary.max_gap),
            mean_gap if canary.mean_gap is None else float(canary.mean_gap),
        )

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        self._rolled_out = True
        batch = self.absorb(batch, metrics)
        self.figures = member_figures(batch, self.layout)
        check_canary(self.figures, *self._canary_limits())
        return super()._compute_advantage(batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict) -> KVBatchMeta:
        # The number of samples varies from step to step; the whole batch is one mini-batch.
        self.config.actor_rollout_ref.actor.ppo_mini_batch_size = len(batch)
        return super()._update_actor(batch, metrics)

    def on_step_end(self) -> None:
        self.population.set_versions(self.actor_rollout_wg.versions()[0])
        for seat, figures in self.figures.items():
            self.population.record_reward(seat, figures.reward)
        self._fitness = self.population.fitness()
        if self.population.evolves_at(self.global_steps, self.steps_per_epoch):
            with marked_timer("evolve", self.timing_raw):
                self._evolve()
        self._invite_guest()
        stop = stopping.requested(self.config.run_dir)
        if stop:
            # verl's loop ends when the step number passes the total.
            self.total_training_steps = self.global_steps
            logger.warning("step %d: stopping on request", self.global_steps)
        if self._save_due or stop:
            self._save_due = False
            with marked_timer("checkpoint", self.timing_raw):
                self._stage_checkpoint()
        super().on_step_end()
        self._check_delivery()

    # ---- evolution ----------------------------------------------------------------------------------------------

    def _evolve(self) -> None:
        step, population = self.global_steps, self.population
        fitness, births = self._fitness, population.plan_births(step)
        names = {member.name: seat for seat, member in population.members.items()}
        record = {
            "step": step,
            "fitness": {population.members[seat].name: value for seat, value in fitness.items()},
            "births": [{"seat": b.seat, "replaced": b.replaced, **asdict(b.lineage)} for b in births],
            "diversity": self.actor_rollout_wg.diversity(population.rules.evolution.collapse_cosine)[0],
        }
        if births:
            self._honour([birth.seat for birth in births])
            versions = self.actor_rollout_wg.breed(births, names)[0]
            for birth, child in zip(births, population.accept_births(births, versions, step), strict=True):
                self.writer.birth(member_record(child))
                logger.info("step %d: %s replaces %s (%s)", step, child.name, birth.replaced, birth.lineage.operator)
        self.writer.evolution(record)
        self._extra_metrics["population/mean_cosine"] = record["diversity"]["mean_cosine"]
        if record["diversity"]["collapsed"]:
            self._extra_metrics["warn/population_collapse"] = 1.0
            logger.warning("step %d: the members' updates are near copies of one another", step)

    def _honour(self, seats: Sequence[str]) -> None:
        """Enter members that are about to be replaced into the hall of fame."""
        capacity = self.population.rules.evolution.hall_of_fame
        if capacity:
            population = self.population
            entries = [(population.members[seat], self._fitness[seat], population.ratings[seat]) for seat in seats]
            self.actor_rollout_wg.honour(str(self._hall_folder), capacity, entries, self.global_steps)

    @property
    def _hall_folder(self) -> Path:
        return Path(self.config.run_dir) / "hall_of_fame"

    def _hall(self) -> HallOfFame | None:
        """As it is on disk now; None where no past members are kept."""
        capacity = self.population.rules.evolution.hall_of_fame
        if not capacity:
            return None
        return HallOfFame(self._hall_folder, capacity, self.config.actor_rollout_ref.model.path)

    def _invite_guest(self) -> None:
        """Seat a past student for the next step's matches; the coming synchronisation sends its adapter."""
        hall = self._hall()
        if hall is None or self.layout.guest_id is None:
            return
        chosen = self.population.choose_guest(hall.entries(Role.STUDENT), self.global_steps)
        seated = self.population.guest
        if chosen is None or (seated is not None and seated.name == chosen.name):
            return
        guest = self.population.seat_guest(chosen, self.global_steps)
        self.actor_rollout_wg.seat_guest(str(hall.folder_of(chosen).absolute()), guest.version)

    # ---- delivery -----------------------------------------------------------------------------------------------

    def _check_delivery(self) -> None:
        """Compare what was sent with what every rollout engine holds."""
        sent = {r["adapter_id"]: AdapterReceipt(**r) for r in self.actor_rollout_wg.sent_adapters()[0]}
        for number, replica in enumerate(self.llm_server_manager.get_replicas()):
            held = ray.get(replica.servers[0].population_receipts.remote())
            compare(sent, {r["adapter_id"]: AdapterReceipt(**r) for r in held}, f"{number}")

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """verl asks before evolution; the checkpoint is written after it, so that a resumed run has the children."""
        self._save_due = True

    def _stage_checkpoint(self) -> None:
        step = self.global_steps
        try:
            self._staged = checkpoints.stage(self.checkpoint_root, step, lambda f: self._fill_checkpoint(f, step))
        except (OSError, ray.exceptions.RayTaskError) as error:
            cause = getattr(error, "cause", None) or error
            if not isinstance(cause, OSError):
                raise
            self._skip_checkpoint(cause)

    def _commit_checkpoint(self) -> None:
        """Called when the step's records are complete: a run killed before this repeats the step."""
        staged, self._staged = self._staged, None
        if staged is None:
            return
        try:
            checkpoints.commit(staged, self.config.trainer.max_actor_ckpt_to_keep)
        except OSError as error:
            self._skip_checkpoint(error)
            return
        if hall := self._hall():
            hall.forget(checkpoints.oldest_step(self.checkpoint_root))

    def _skip_checkpoint(self, error: OSError) -> None:
        self._extra_metrics["warn/checkpoint_skipped"] = 1.0
        logger.error(
            "NO CHECKPOINT at step %d: %s. Training goes on; free some space under %s.",
            self.global_steps, error, self.checkpoint_root,
        )  # fmt: skip

    def _rescue(self) -> None:
        """Before stopping in a rollout: save the end of the last step, unless a checkpoint holds it."""
        step = self.global_steps - 1
        newest = checkpoints.latest(self.checkpoint_root)
        if step < 1 or (newest is not None and checkpoints.step_of(newest) >= step):
            return
        keep = self.config.trainer.max_actor_ckpt_to_keep
        try:
            checkpoints.save(self.checkpoint_root, step, lambda f: self._fill_checkpoint(f, step), keep)
            logger.error("the rollout of step %d failed; step %d was saved before stopping", step + 1, step)
        except (OSError, ray.exceptions.RayError) as error:
            # What made the rollout fail is what has to be told.
            logger.error("step %d could not be saved before stopping: %s", step, error)

    def _fill_checkpoint(self, folder: Path, step: int) -> None:
        members = self.population.members
        names = {seat: member.name for seat, member in members.items()}
        metadata = {seat: member_record(member) for seat, member in members.items()}
        self.actor_rollout_wg.save_members(str(folder.absolute()), names, metadata)
        if self.population.guest is not None:
            self.actor_rollout_wg.save_guest(str((folder / GUEST).absolute()))
        state = self.population.state_dict()
        for record in state["members"]:
            record["adapter"] = f"adapters/{record['name']}"
        population = {
            "step": step,
            "base_model": self.config.actor_rollout_ref.model.path,
            **state,
        }
        (folder / POPULATION_FILE).write_text(json.dumps(population, indent=2))
        (folder / TRAINER_FILE).write_text(json.dumps(self.task_state()))

    def _load_checkpoint(self) -> None:
        self.global_steps = 0
        folder = self._checkpoint_to_resume()
        checkpoints.remove_partial(self.checkpoint_root)
        self._rewind_records(folder)
        if folder is None:
            if initial := self.config.population.initial_adapters:
                self.population.set_origins(self.actor_rollout_wg.found_members(str(initial))[0])
            return
        state = json.loads((folder / POPULATION_FILE).read_text())
        self.population.load_state_dict(state)
        names = {seat: member.name for seat, member in self.population.members.items()}
        self.actor_rollout_wg.load_members(str(folder.absolute()), names)
        if self.population.guest is not None:
            self.actor_rollout_wg.seat_guest(str((folder / GUEST).absolute()), self.population.guest.version)
        self.global_steps = checkpoints.step_of(folder)
        self.load_task_state(json.loads((folder / TRAINER_FILE).read_text()))
        logger.info("resumed from %s", folder)

    def _rewind_records(self, folder: Path | None) -> None:
        """Remove what was written after the checkpoint that the run starts from; None: it starts anew."""
        step = -1 if folder is None else checkpoints.step_of(folder)
        self.writer.truncate_after(step)
        if hall := self._hall():
            hall.rewind(step)

    def _checkpoint_to_resume(self) -> Path | None:
        trainer = self.config.trainer
        if trainer.resume_mode == "disable":
            return None
        if trainer.resume_mode == "resume_path":
            return Path(trainer.resume_from_path)
        return checkpoints.latest(self.checkpoint_root)

    # ---- metrics ------------------------------------------------------------------------------------------------

    def _compute_metrics(self, batch: KVBatchMeta, metrics, timing_raw, global_steps, epoch) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps, epoch)
        metrics.update(self._population_metrics(metrics))
        metrics.update(_phase_times(timing_raw))
        metrics.update(self._extra_metrics)
        self._extra_metrics = {}
        if self.logger.take_failures():
            metrics["warn/tracker_failed"] = 1.0
        numbers = {name: float(value) for name, value in metrics.items() if _is_number(value)}
        derived = self.derived_metrics(global_steps, numbers)
        metrics.update(derived)
        self.writer.metrics(global_steps, numbers | derived)
        self._commit_checkpoint()

    def _population_metrics(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        result: dict[str, float] = {}
        for seat, member in self.population.members.items():
            if seat in self.figures:
                result |= self.figures[seat].as_metrics(seat)
            for name in ("grad_norm", "skipped_updates"):
                if (value := metrics.get(f"actor/member/{seat}/{name}")) is not None:
                    result[f"member/{seat}/{name}"] = value
            if self.population.is_rated:
                rating = self.population.ratings[seat]
                result[f"member/{seat}/mu"], result[f"member/{seat}/sigma"] = rating.mu, rating.sigma
                result[f"member/{seat}/fitness"] = self._fitness[seat]
            result[f"member/{seat}/version"] = member.version
        return result


_PHASES = {
    "step": "step",
    "gen": "rollout",
    "old_log_prob": "log_prob",
    "adv": "advantage",
    "update_actor": "update",
    "evolve": "evolve",
    "checkpoint": "checkpoint",
    "update_weights": "sync",
}


def _phase_times(timing_raw: Mapping[str, float]) -> dict[str, float]:
    return {f"time/{ours}": timing_raw[verls] for verls, ours in _PHASES.items() if verls in timing_raw}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (isinstance(value, torch.Tensor) and value.numel() == 1)
