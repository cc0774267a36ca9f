"""Episodes inside verl's rollout workers: one agent loop is one episode, each of its samples one row."""

# verl and TransferQueue carry no types.
# pyright: reportAttributeAccessIssue=false, reportArgumentType=false

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import ray
import torch
from omegaconf import DictConfig
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from azr_overrides.episode import (
    Episode,
    EpisodePlan,
    EpisodeResult,
    Generation,
    Message,
    PromptTooLong,
    Row,
    Rules,
)
from azr_overrides.rewards.azr import AzrProposerReward
from azr_overrides.sandbox import Sandbox
from azr_overrides.settings import build_rules, sandbox_config
from azr_overrides.tasks.parsing import completion_text
from azr_overrides.tasks.type_counters import LABELS, TypeCounters
from azr_overrides.tasks.types import Task
from verl_populora.logs import show_messages

logger = logging.getLogger(__name__)

# AgentLoopWorkerTQ is a Ray actor class; a subclass needs the class behind it.
_AgentLoopWorker = AgentLoopWorkerTQ.__ray_metadata__.modified_class  # type: ignore[attr-defined]

LEDGER = "ledger"  # column: on an episode's first row, what the trainer records of the episode; elsewhere empty


@dataclass
class _Process:
    """What all episodes of one worker process share: the sandbox, the rules, the tasks that exist already."""

    sandbox: Sandbox
    rules: Rules
    known: set[str]
    counters: TypeCounters
    restarts: int = 0  # of the sandbox as a whole

    @classmethod
    async def start(cls, config: DictConfig) -> "_Process":
        show_messages()
        sandbox = await _started_sandbox(config)
        return cls(sandbox, build_rules(config, sandbox), set(), TypeCounters())

    async def restart_sandbox(self, config: DictConfig) -> None:
        """Put a fresh sandbox in the place of one that has given up."""
        logger.error("starting another sandbox: %s", self.sandbox.failure)
        fresh = await _started_sandbox(config)
        await self.sandbox.close()
        self.sandbox, self.rules = fresh, build_rules(config, fresh)
        self.restarts += 1
        self.remember(())

    def remember(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            self.known.add(task.task_id)
            self.counters.add(task)
        reward = self.rules.proposer_reward
        if isinstance(reward, AzrProposerReward):
            counts = {label: self.counters[label] for label in LABELS}
            self.rules = replace(self.rules, proposer_reward=reward.with_counters(counts))


async def _started_sandbox(config: DictConfig) -> Sandbox:
    sandbox = Sandbox(sandbox_config(config))
    await sandbox.start()
    return sandbox


_process: _Process | None = None
_process_lock = asyncio.Lock()


async def _shared(config: DictConfig) -> _Process:
    global _process
    async with _process_lock:
        if _process is None:
            _process = await _Process.start(config)
        elif _process.sandbox.failure is not None:
            await _process.restart_sandbox(config)
    return _process


@register("episode")
class EpisodeAgentLoop(AgentLoopBase):
    """Runs the EpisodePlan in the batch's ``plan`` column."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[AgentLoopOutput]:  # type: ignore[override]
        plan: EpisodePlan = kwargs["plan"]
        process = await _shared(self.config)

        async def policy(
            adapter_id: int, messages: list[Message], seed: int, max_prompt: int | None = None
        ) -> Generation:
            return await self._generate(adapter_id, messages, {**sampling_params, "seed": seed}, max_prompt)

        result = await Episode(plan, process.rules, policy, process.known).run()
        if not result.rows:
            raise RuntimeError(f"episode {plan.episode} of step {plan.step} produced no sample: {dict(result.drops)}")
        return _outputs(result)

    async def _generate(
        self, adapter_id: int, messages: list[Message], sampling: dict[str, Any], max_prompt: int | None
    ) -> Generation:
        build = self.continuous_token_builder.build_initial_tokens
        prompt_ids = await self.loop.run_in_executor(None, lambda: build(messages, tools=None))
        limit = min(self.rollout_config.prompt_length, max_prompt or self.rollout_config.prompt_length)
        if len(prompt_ids) > limit:
            raise PromptTooLong(f"the prompt has {len(prompt_ids)} tokens, the limit is {limit}")
        output = await self.server_manager.generate(
            request_id=uuid4().hex, prompt_ids=prompt_ids, sampling_params=sampling, adapter_id=adapter_id
        )
        response_ids = list(output.token_ids)[: self.rollout_config.response_length]
        if not response_ids or output.stop_reason == "aborted":
            raise RuntimeError(f"the rollout engine returned nothing ({output.stop_reason})")
        text = completion_text(
            self.tokenizer.decode(prompt_ids, skip_special_tokens=True),
            self.tokenizer.decode(response_ids, skip_special_tokens=True),
            self.config.reward_fn.splitter,
        )
        sample = AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=response_ids,
            response_mask=[1] * len(response_ids),
            response_logprobs=list(output.log_probs)[: len(response_ids)],
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields=dict(output.extra_fields),
        )
        return Generation(text, len(response_ids), output.extra_fields["adapter_version"], sample)


def _outputs(result: EpisodeResult) -> list[AgentLoopOutput]:
    outputs = []
    for row in result.rows:
        output: AgentLoopOutput = row.generation.sample
        output.reward_score = row.reward
        output.extra_fields["row"] = row
        outputs.append(output)
    outputs[0].extra_fields[LEDGER] = json.dumps({"records": result.records, "drops": result.drops})
    return outputs


class EpisodeWorker(_AgentLoopWorker):
    """verl's agent-loop worker that stores each sample of an episode under its own key."""

    async def _agent_loop_postprocess(self, output, validate, **kwargs) -> None:
        rows = output if isinstance(output, list) else [output]
        put = super()._agent_loop_postprocess
        await asyncio.gather(*(put(row, validate, **_columns(row, kwargs)) for row in rows))

    async def remember(self, tasks: Sequence[Task]) -> None:
        """Tasks that exist: a proposal that repeats one is a duplicate, and diversity is measured against them."""
        (await _shared(self.config)).remember(tasks)

    async def sandbox_report(self) -> dict[str, Any]:
        """Isolation level and executor statistics of this process."""
        process = await _shared(self.config)
        metrics = process.sandbox.metrics() | {"restarts": process.restarts}
        return {"isolation": str(process.sandbox.isolation.level), "metrics": metrics}

    async def lifetime(self) -> None:
        """Never returns; the call fails when this process dies."""
        await asyncio.Event().wait()

    async def close_sandbox(self) -> None:
        if _process is not None:
            await _process.sandbox.close()


def _columns(output: AgentLoopOutput, prompt: dict[str, Any]) -> dict[str, Any]:
    """Columns of one sample: its group as ``uid``, its place there as ``session_id``, its adapter."""
    row: Row = output.extra_fields.pop("row")
    return {
        "uid": row.group.uid,
        "session_id": row.index,
        "global_steps": prompt["global_steps"],
        "adapter_id": torch.tensor(row.group.adapter_id, dtype=torch.int64),
        LEDGER: output.extra_fields.pop(LEDGER, ""),
    }


class EpisodeManager(AgentLoopManagerTQ):
    """verl's agent-loop manager with EpisodeWorkers (``rollout.agent.agent_loop_manager_class``)."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(EpisodeWorker)
        self._lifetimes: list[ray.ObjectRef] = []

    def check_alive(self) -> None:
        """Raises RuntimeError if a worker process has died: its episodes would never end."""
        if not self._lifetimes:
            self._lifetimes = [worker.lifetime.remote() for worker in self.agent_loop_workers]
        ended, _ = ray.wait(self._lifetimes, timeout=0)
        try:
            ray.get(ended)
        except ray.exceptions.RayError as error:
            raise RuntimeError(
                "a rollout worker (EpisodeWorker) has died, and its episodes with it; most often the host was out of "
                "memory (see dmesg and Ray's log folder)"
            ) from error

    def remember(self, tasks: Sequence[Task]) -> None:
        ray.get([worker.remember.remote(list(tasks)) for worker in self.agent_loop_workers])

    def sandbox_reports(self) -> list[dict[str, Any]]:
        return ray.get([worker.sandbox_report.remote() for worker in self.agent_loop_workers])

    def close(self) -> None:
        ray.get([worker.close_sandbox.remote() for worker in self.agent_loop_workers])
