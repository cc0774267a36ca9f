"""The population trainer for AZR's self-play: plans episodes, keeps the task buffers, records what happened."""

# verl and TransferQueue carry no types.
# pyright: reportArgumentType=false, reportCallIssue=false

import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from transfer_queue import KVBatchMeta

import azr_overrides.estimators  # noqa: F401  (registers the advantage estimators)
from azr_overrides.agent_loop import LEDGER, EpisodeManager
from azr_overrides.buffers import TaskBuffers
from azr_overrides.episode import EpisodePlan
from azr_overrides.planning import Planner
from azr_overrides.rewards.azr import passes_filter
from azr_overrides.runinfo import read_tasks, seed_file
from azr_overrides.settings import make_buffers, population_rules, task_kinds
from azr_overrides.sizes import step_sizes
from azr_overrides.step_metrics import match_observation, task_metrics
from azr_overrides.tasks.composites import CompositeSchedule
from azr_overrides.tasks.coverage import CoverageTracker
from azr_overrides.tasks.types import RejectReason, Task, TaskKind
from verl_populora.detectors import detect, warning_metrics
from verl_populora.layout import PopulationLayout
from verl_populora.population import Population
from verl_populora.rundir import RunReader
from verl_populora.selfplay.groups import Group, Part
from verl_populora.selfplay.matchmaking import Match
from verl_populora.trainer.batch import real_rows
from verl_populora.trainer.population_trainer import PopulationTrainer
from verl_populora.trainer.replay import OrderedReplayBuffer

logger = logging.getLogger(__name__)

Record = dict[str, Any]


class AzrTrainer(PopulationTrainer):
    """AZR's tasks for a population, or for the single-agent baseline."""

    agent_loop_manager: EpisodeManager

    def __init__(self, config: DictConfig):
        self.sizes = step_sizes(config)
        self.duplicate_reward: float | None = config.population.duplicate_task_reward
        self.code_f_reward_type: str = config.azr.reward.code_f_reward_type
        self.program_filter: str = config.azr.data_selection_strategy.valid_program_filter
        self.coverage = CoverageTracker()
        self.buffers: TaskBuffers = make_buffers(config, read_tasks(seed_file(config)))
        layout = PopulationLayout.from_model_config(config.actor_rollout_ref.model)
        population = Population(layout, population_rules(config), int(config.seed))
        selection = config.azr.data_selection_strategy
        shown = selection.io_n if config.azr.reward.generation_reward_config.include_references else 0
        self.planner = Planner(
            self.sizes,
            task_kinds(config),
            int(shown),
            CompositeSchedule.from_config(selection),
            int(config.azr.pretrain_pred_steps),
            self.buffers,
            np.random.default_rng(np.random.SeedSequence(int(config.seed)).spawn(3)[2]),
            int(config.seed),
        )
        self.matches: list[Match] = []
        self._unannounced: list[Task] = self._all_tasks()
        self._history: list[Record] = []
        super().__init__(config, population)

    def _all_tasks(self) -> list[Task]:
        return [task for kind in TaskKind for task in self.buffers.tasks(kind)]

    def on_train_begin(self) -> None:
        super().on_train_begin()
        assert isinstance(self.replay_buffer, OrderedReplayBuffer)
        self.replay_buffer.watch = self.agent_loop_manager.check_alive

    # ---- planning -----------------------------------------------------------------------------------------------

    def plan_episodes(self, step: int) -> Sequence[EpisodePlan]:
        self.agent_loop_manager.remember(self._unannounced)
        self._unannounced = []
        members = self.population.members
        self.matches = self.population.make_matches(step)
        if self.matches:
            return self.planner.population_step(step, self.matches, self.population.players())
        (agent,) = members.values()
        return self.planner.single_step(step, agent)

    # ---- absorbing ----------------------------------------------------------------------------------------------

    def absorb(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        records, drops = self._read_ledgers(batch)
        if self.duplicate_reward is not None:
            self._discount_repeats(batch, records, self.duplicate_reward)
        fresh = self._store_tasks(records)
        matches = self._rate(records)
        self.writer.tasks(self.global_steps, records)
        self.writer.matches(matches)
        seats = {player.name: seat for seat, player in self.population.players().items()}
        metrics.update(task_metrics(records, seats.__getitem__))
        coverage = self.coverage.add_batch(task.program for task in fresh)
        metrics |= {"coverage/new": coverage.new, "coverage/total": coverage.total}
        if fresh:
            metrics["coverage/distinct_rate"] = coverage.distinct_rate
        metrics.update({f"drops/{what}": count for what, count in drops.items()})
        metrics.update(self._sandbox_metrics())
        return batch

    def _read_ledgers(self, batch: KVBatchMeta) -> tuple[list[Record], Counter[str]]:
        """Proposal records in the order of the plan, and what was lost."""
        rows = real_rows(batch)
        data = tq.kv_batch_get(
            keys=[batch.keys[i] for i in rows], partition_id=batch.partition_id, select_fields=[LEDGER]
        )
        ledgers = [json.loads(text) for text in _texts(data[LEDGER]) if text]
        drops: Counter[str] = Counter()
        for ledger in ledgers:
            drops.update(ledger["drops"])
        if lost := len(self.plans) - len(ledgers):
            drops["episode"] += lost
        records = [record for ledger in ledgers for record in ledger["records"]]
        return sorted(records, key=lambda r: (r["episode"], r["index"] or 0)), drops

    def _discount_repeats(self, batch: KVBatchMeta, records: Sequence[Record], reward: float) -> None:
        """Later copies of a task inside one step are not new tasks either; their proposers' rewards are replaced."""
        seen: set[str] = set()
        changed: list[str] = []
        for record in records:
            if not record["valid"] or record["teacher"] is None:
                continue
            if record["task_id"] not in seen:
                seen.add(record["task_id"])
                continue
            record.update(valid=False, reason=str(RejectReason.DUPLICATE), reward=reward)
            record["detail"] = "another proposal of this step made the same task"
            changed.append(self._proposal_key(record))
        keys = set(batch.keys)
        present = [key for key in changed if key in keys]
        if not present:
            return
        data = tq.kv_batch_get(keys=present, partition_id=batch.partition_id, select_fields=["rm_scores"])
        scores = []
        for score in data["rm_scores"].unbind():
            replaced = torch.zeros_like(score)
            replaced[-1] = reward
            scores.append(replaced)
        nested = torch.nested.as_nested_tensor(scores, layout=torch.jagged)
        tq.kv_batch_put(
            keys=present,
            partition_id=batch.partition_id,
            fields=TensorDict({"rm_scores": nested}, batch_size=len(present)),
        )

    def _proposal_key(self, record: Record) -> str:
        adapter_id = next(m.adapter_id for m in self.population.members.values() if m.name == record["teacher"])
        group = Group(record["episode"], adapter_id, Part.PROPOSE, record["kind"], "t")
        return f"{group.uid}_{record['index']}_0"

    def _store_tasks(self, records: Sequence[Record]) -> list[Task]:
        """Put this step's new tasks into the buffers."""
        fresh = []
        for record in records:
            if record["valid"] and record["teacher"] is not None and record["solve_rate"] is not None:
                task = Task(
                    task_id=record["task_id"],
                    kind=TaskKind(record["kind"]),
                    program=record["program"],
                    inputs=tuple(record["inputs"]),
                    outputs=tuple(record["outputs"]),
                    imports=tuple(record["imports"]),
                    message=record["message"],
                    original_program=record["original_program"],
                    composites=tuple(record["composites"]),
                    author=record["teacher"],
                    step=self.global_steps,
                )
                if passes_filter(record["solve_rate"], self.program_filter):
                    self.buffers.add(task)
                fresh.append(task)
        self._unannounced += fresh
        return fresh

    def _rate(self, records: Sequence[Record]) -> list[Record]:
        """Update ratings by this step's matches; a match without a single surviving proposal says nothing."""
        outcomes = []
        for match in self.matches:
            name = self.population.members[match.teacher].name
            own = [r for r in records if r["teacher"] == name and r["reward"] is not None]
            if not own:
                continue
            student = self.population.players()[match.student].name
            observation = match_observation(own, student, self.code_f_reward_type)
            outcome = self.population.record_match(match, observation)
            outcomes.append({"step": self.global_steps, "tasks": len(own), **outcome})
        return outcomes

    def _sandbox_metrics(self) -> dict[str, float]:
        """Executor statistics, summed over the rollout's processes (rates and latencies: the worst process)."""
        merged: dict[str, float] = {}
        for report in self.agent_loop_manager.sandbox_reports():
            for name, value in report["metrics"].items():
                worst = name.startswith("p") and name.endswith("_ms")
                merged[name] = max(merged.get(name, 0.0), value) if worst else merged.get(name, 0.0) + value
        return {f"sandbox/{name}": value for name, value in merged.items()}

    def derived_metrics(self, step: int, metrics: Mapping[str, float]) -> dict[str, float]:
        """The detectors' findings, from the run so far and this step."""
        self._history.append({"step": step, **metrics})
        findings = detect(self._history)
        for finding in findings:
            logger.warning("step %d: %s", step, finding)
        return dict(warning_metrics(findings))

    # ---- persistence --------------------------------------------------------------------------------------------

    def task_streams(self) -> Sequence[np.random.Generator]:
        return (self.planner.rng,)

    def task_state(self) -> dict[str, Any]:
        return {
            "buffers": self.buffers.state_dict(),
            "coverage": self.coverage.state_dict(),
            "rng": self.planner.rng.bit_generator.state,
        }

    def load_task_state(self, state: Mapping[str, Any]) -> None:
        self.buffers.load_state_dict(state["buffers"])
        self.coverage.load_state_dict(state["coverage"])
        self.planner.rng.bit_generator.state = state["rng"]
        self._unannounced = self._all_tasks()
        # Detectors compare with the first steps of a run; the lines after the checkpoint are dropped by now.
        self._history = RunReader(self.writer.path).metrics()


def _texts(column: Any) -> list[str]:
    return [getattr(value, "data", value) for value in column]
