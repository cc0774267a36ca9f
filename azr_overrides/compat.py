"""Overrides of AZR's recipes for this configuration.

AZR runs on older verl versions, so some keys of its recipes have another name today, or none. `translate`
rewrites them and says so in one line each; a key that exists nowhere is an error.
"""

import difflib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from azr_overrides.config import CONFIG_DIR, compose, verl_config_dir


class UnknownKey(ValueError):
    """An override names a key that neither AZR nor this configuration has."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of an override."""

    why: str  # for the notice, after the key
    key: str | None = None  # the new key; None drops the override
    value: str | None = None  # the new value as text; None keeps the old one
    when: Callable[[Any], bool] = lambda value: True  # by the old value, whether the rule applies


def _dropped(why: str) -> Rule:
    return Rule(why)


def _renamed(key: str) -> Rule:
    return Rule(f"is called {key} in this version of verl", key)


_EVALUATION = "benchmarks run on checkpoints, with `python -m eval`"
_SELF_PLAY = "self-play makes its own tasks"
_NO_MODEL = "rewards come from verification and solve rates (azr.reward); no such model is run"

# Keys that are gone. A mapping stands for everything below it.
MOVED: Mapping[str, tuple[Rule, ...]] = {
    "actor_rollout_ref.model.pretrained_tokenizer": (
        Rule("became azr.chat: prompts without role tokens", "azr.chat", "raw", when=bool),
        Rule("became azr.chat: the tokenizer's chat template", "azr.chat", "template"),
    ),
    "actor_rollout_ref.ref.include_ref": (
        _dropped("a reference policy is used if and only if actor_rollout_ref.actor.use_kl_loss is true"),
    ),
    "actor_rollout_ref.actor.fsdp_config.grad_offload": (
        _dropped("verl has no switch for gradients; see param_offload and optimizer_offload"),
    ),
    "actor_rollout_ref.actor.profiler.discrete": (_dropped("profiling is configured in global_profiler"),),
    "actor_rollout_ref.ref.profiler.discrete": (_dropped("profiling is configured in global_profiler"),),
    "actor_rollout_ref.rollout.profiler.discrete": (_dropped("profiling is configured in global_profiler"),),
    "actor_rollout_ref.rollout.multi_turn.max_turns": (
        _renamed("actor_rollout_ref.rollout.multi_turn.max_assistant_turns"),
    ),
    "actor_rollout_ref.rollout.use_fire_sampling": (_dropped("verl has no such sampling any more"),),
    "actor_rollout_ref.rollout.chat_scheduler": (_dropped("episodes are run by an agent loop"),),
    "azr.random_print_max_programs": (_dropped("every task is written to the tasks/ folder of the run directory"),),
    "critic.model.fsdp_config": (_dropped("no critic is trained"),),
    "data.max_validation_prompt_length": (_dropped(_EVALUATION),),
    "ray_init": (_renamed("ray_kwargs.ray_init"),),
    "reward_model": (_dropped(_NO_MODEL),),
    "trainer.controller_nsight_options": (_dropped("profiling is configured in global_profiler"),),
    "trainer.worker_nsight_options": (_dropped("profiling is configured in global_profiler"),),
    "trainer.profile_steps": (_renamed("global_profiler.steps"),),
    "trainer.debug": (_dropped("set the environment variable RAY_DEBUG_POST_MORTEM=1 to debug workers"),),
    "trainer.debug_port": (_dropped("set the environment variable RAY_DEBUG_POST_MORTEM=1 to debug workers"),),
    "trainer.remove_previous_ckpt_in_save": (
        Rule("became trainer.max_actor_ckpt_to_keep", "trainer.max_actor_ckpt_to_keep", "1", when=bool),
        Rule("became trainer.max_actor_ckpt_to_keep", "trainer.max_actor_ckpt_to_keep", "null"),
    ),
    "trainer.val_generations_to_log_to_wandb": (_renamed("trainer.log_val_generations"),),
    "trainer.wandb_run_id": (
        _dropped("set the environment variables WANDB_RUN_ID and WANDB_RESUME=allow to continue a run"),
    ),
    "trainer.wandb_tags": (_dropped("set the environment variable WANDB_TAGS"),),
}

# Keys that exist, with values of AZR's recipes that mean something else here.
ADAPTED: Mapping[str, Rule] = {
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": Rule(
        "is 1 here: a micro-batch mixes adapters by sample, so samples are not split over GPUs",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
        "1",
        when=lambda value: value != 1,
    ),
    "actor_rollout_ref.rollout.mode": Rule(
        "is async here: verl has no synchronous rollout any more",
        "actor_rollout_ref.rollout.mode",
        "async",
        when=lambda value: value == "sync",
    ),
    "actor_rollout_ref.rollout.load_format": Rule(
        "is ignored: each engine loads the frozen base itself", when=lambda value: "dummy" in str(value)
    ),
    "algorithm.adv_estimator": Rule(
        "is chosen from the population: AZR's TRR++ for one agent, its counterpart for adapters otherwise",
        "algorithm.adv_estimator",
        "null",
        when=lambda value: value == "reinforce_plus_plus",
    ),
    "data.train_files": Rule(f"is ignored: {_SELF_PLAY}"),
    "data.val_files": Rule(f"is ignored: {_SELF_PLAY}; {_EVALUATION}"),
    "data.val_batch_size": Rule(f"is ignored: {_EVALUATION}"),
    "trainer.test_freq": Rule(
        f"is off here: {_EVALUATION}",
        "trainer.test_freq",
        "-1",
        when=lambda value: value is not None and value > 0,
    ),
    "trainer.val_before_train": Rule(f"is off here: {_EVALUATION}", "trainer.val_before_train", "False", when=bool),
    "azr.ast_check": Rule("is always on: verification parses first", when=lambda value: not value),
    "azr.executor": Rule(
        "has no choice here: programs run in the sandbox (azr.sandbox)", when=lambda value: value != "qwq"
    ),
}


def translate(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of an AZR recipe as overrides of this configuration.

    Args:
        overrides: in Hydra's grammar; a leading ``+`` is accepted before keys that exist, too.

    Returns:
        The overrides to compose with, and one line for each key that was renamed, adapted or dropped.

    Raises:
        UnknownKey: a key exists neither here nor in AZR; the message names the nearest key.
        ValueError: an override is not in Hydra's grammar.
    """
    translated, notices = [], []
    for text in overrides:
        override = _parse(text)
        key = override.key_or_group
        if key.startswith("hydra.") or override.package is not None or key in _config_groups():
            translated.append(text)
            continue
        rule, rest = _rule(key, override)
        if rule is None:
            translated.append(_with_sign(text, override))
            continue
        notices.append(f"{key} {rule.why}")
        if rule.key is not None:
            value = rule.value if rule.value is not None else override.get_value_element_as_str()
            translated.append(f"{rule.key}{rest}={value}")
    return translated, notices


def _parse(text: str) -> Override:
    try:
        return _parser().parse_override(text)
    except HydraException as error:
        raise ValueError(f"{text!r} is not an override; write key=value ({str(error).splitlines()[0]})") from error


@functools.cache
def _parser() -> OverridesParser:
    return OverridesParser.create()


def _rule(key: str, override: Override) -> tuple[Rule | None, str]:
    """The rule for a key and what follows the part of the key that the rule names."""
    value = None if override.is_delete() else override.value()
    if key in ADAPTED and ADAPTED[key].when(value):
        return ADAPTED[key], ""
    if is_known(key):
        return None, ""
    for old, rules in MOVED.items():
        if key == old or key.startswith(old + "."):
            return next(rule for rule in rules if rule.when(value)), key[len(old) :]
    return None, ""


def _with_sign(text: str, override: Override) -> str:
    """The override with the sign that Hydra wants for its key: none if the key exists, ``+`` if it is new."""
    key = override.key_or_group
    bare = text.lstrip("+")
    if override.is_delete() or is_known(key):
        if not is_known(key):
            raise _unknown(key)
        return bare
    if not _is_open(key):
        raise _unknown(key)
    return "+" + bare


def _unknown(key: str) -> UnknownKey:
    known = _known_keys()
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    leaf = key.rpartition(".")[2]
    nearest = nearest or [name for name in known if name.rpartition(".")[2] == leaf][:1]
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return UnknownKey(f"there is no key {key}{hint}")


@functools.cache
def _config_groups() -> frozenset[str]:
    """Names of the folders from which one file is chosen, for example ``population``."""
    return frozenset(
        folder.name for root in (CONFIG_DIR, verl_config_dir()) for folder in root.iterdir() if folder.is_dir()
    )


@functools.cache
def _base() -> DictConfig:
    return compose()


@functools.cache
def _known_keys() -> tuple[str, ...]:
    return tuple(_flatten(OmegaConf.to_container(_base(), resolve=False)))  # type: ignore[arg-type]


def _flatten(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        yield f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")


def is_known(key: str) -> bool:
    """Whether the composed configuration has ``key``."""
    return key in _known_key_set()


@functools.cache
def _known_key_set() -> frozenset[str]:
    return frozenset(_known_keys())


def _is_open(key: str) -> bool:
    """Whether the nearest existing ancestor of ``key`` is empty or null: a place for free-form keys."""
    parent = key.rpartition(".")[0]
    while parent and not is_known(parent):
        parent = parent.rpartition(".")[0]
    if not parent:
        return False
    value = OmegaConf.select(_base(), parent)
    return value is None or (isinstance(value, DictConfig) and len(value) == 0)
