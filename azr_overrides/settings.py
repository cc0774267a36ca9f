"""Objects of a run, made from its configuration."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from omegaconf import DictConfig, OmegaConf

from azr_overrides.buffers import BufferOptions, TaskBuffers
from azr_overrides.episode import Rules
from azr_overrides.rewards.attempts import counted_accuracy, student_reward
from azr_overrides.rewards.azr import AzrProposerReward, ProposerRewardOptions
from azr_overrides.rewards.teacher import FailureRateReward, ProposerReward
from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.seeding import SeedFiles
from azr_overrides.tasks.guessing import GuessRule
from azr_overrides.tasks.parsing import ParseOptions
from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import Task, TaskKind
from azr_overrides.tasks.verification import VerificationConfig, Verifier
from verl_populora.evolution.config import EvolutionConfig
from verl_populora.population import PopulationRules


def task_kinds(config: DictConfig) -> tuple[TaskKind, ...]:
    """The kinds that are proposed.

    Raises:
        ValueError: an unknown kind.
    """
    known = [kind.value for kind in TaskKind]
    for name in config.azr.problem_types:
        if name not in known:
            raise ValueError(f"azr.problem_types names {name!r}; choose from {', '.join(known)}")
    return tuple(TaskKind(name) for name in config.azr.problem_types)


def sandbox_config(config: DictConfig) -> SandboxConfig:
    limits = config.azr.sandbox
    seconds = float(config.azr.execute_max_timeout)
    return SandboxConfig(
        workers=limits.workers,
        slots=limits.slots,
        cpu_s=seconds,
        wall_s=seconds,
        memory_mb=limits.memory_mb,
        min_isolation=limits.min_isolation,
    )


def prompt_set(config: DictConfig) -> PromptSet:
    return PromptSet.load(config.azr.prompt_source, config.reward_fn.extraction_type)


def proposer_reward(config: DictConfig) -> ProposerReward:
    """AZR's learnability reward for the single agent, the student's failure rate for teachers."""
    if int(config.population.teachers) == 0:
        return AzrProposerReward(ProposerRewardOptions.from_config(config))
    return FailureRateReward(
        unsolved_task_reward=float(config.population.unsolved_task_reward),
        code_f_reward_type=config.azr.reward.code_f_reward_type,
        format_rule=bool(config.azr.reward.generation_reward_config.format_reward),
    )


def verifier(config: DictConfig, sandbox: Sandbox) -> Verifier:
    selection = config.azr.data_selection_strategy
    return Verifier(
        sandbox,
        VerificationConfig(
            banned_words=tuple(selection.banned_words),
            banned_keywords=tuple(selection.banned_keywords_for_errors_and_exceptions or ()),
        ),
    )


def build_rules(config: DictConfig, sandbox: Sandbox) -> Rules:
    """The rules of an episode."""
    code_f = config.azr.reward.code_f_reward_type
    selection, proposals = config.azr.data_selection_strategy, config.azr.reward.generation_reward_config
    return Rules(
        prompts=prompt_set(config),
        parse=ParseOptions.from_config(config),
        verifier=verifier(config, sandbox),
        proposer_reward=proposer_reward(config),
        attempt_reward=partial(student_reward, code_f_reward_type=code_f),
        counted_accuracy=partial(counted_accuracy, code_f_reward_type=code_f),
        asking={
            "banned_words": tuple(selection.banned_words),
            "banned_keywords": tuple(selection.banned_keywords_for_errors_and_exceptions or ()),
            "remove_input_from_snippet": bool(proposals.remove_input_from_snippet),
            "remove_after_return": bool(proposals.remove_after_return),
        },
        content_max_length=int(selection.content_max_length),
        duplicate_task_reward=config.population.duplicate_task_reward,
        guessing=GuessRule.from_config(config),
    )


def population_rules(config: DictConfig) -> PopulationRules:
    """How members meet, are rated and replaced.

    Raises:
        ValueError: an unknown name or parameter.
    """
    population, model = config.population, config.actor_rollout_ref.model
    return PopulationRules(
        matchmaking=population.matchmaking.name,
        matchmaking_params=_plain(population.matchmaking.params),
        rating=population.rating.name,
        rating_params=_plain(population.rating.params),
        fitness=population.fitness.name,
        fitness_params=_plain(population.fitness.params),
        students_per_task=int(population.students_per_task),
        evolution=EvolutionConfig.from_mapping(_plain(population.evolution)),
        rank=int(model.lora_rank),
        alpha=float(model.lora_alpha),
    )


async def seed_tasks(config: DictConfig, sandbox: Sandbox) -> list[Task]:
    """The run's seed tasks, each executed anew: those of the seed files, or the built-in identity task.

    Raises:
        ValueError: a seed file is damaged (the message names the line), or holds no valid task of a kind.
    """
    return await SeedFiles.from_config(config).load(verifier(config, sandbox))


def make_buffers(config: DictConfig, tasks: Iterable[Task]) -> TaskBuffers:
    return TaskBuffers.seeded(tasks, BufferOptions.from_config(config))


def _plain(node: Any) -> dict[str, Any]:
    return OmegaConf.to_container(node, resolve=True)  # type: ignore[return-value]
