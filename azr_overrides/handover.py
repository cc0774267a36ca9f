"""From an AZR checkout's own entry point to ours: its YAML gives the defaults, its command line the
overrides.

`patches/azr_population.patch` makes upstream call `main` when a ``population=`` is asked for.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from azr_overrides.compat import is_known

# What a recipe of upstream means by its defaults: the method and its hyperparameters, the machine, the run.
# Everything else in upstream's file configures parts of an older verl.
TAKEN = (
    "azr",
    "reward_fn",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    "algorithm.gamma",
    "algorithm.lam",
    "actor_rollout_ref.model.trust_remote_code",
    "actor_rollout_ref.model.enable_gradient_checkpointing",
    "actor_rollout_ref.actor.grad_clip",
    "actor_rollout_ref.actor.clip_ratio",
    "actor_rollout_ref.actor.clip_ratio_low",
    "actor_rollout_ref.actor.clip_ratio_high",
    "actor_rollout_ref.actor.clip_ratio_c",
    "actor_rollout_ref.actor.entropy_coeff",
    "actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.kl_loss_coef",
    "actor_rollout_ref.actor.kl_loss_type",
    "actor_rollout_ref.actor.ppo_epochs",
    "actor_rollout_ref.actor.loss_agg_mode",
    "actor_rollout_ref.actor.optim.lr",
    "actor_rollout_ref.actor.optim.weight_decay",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.rollout.temperature",
    "actor_rollout_ref.rollout.top_k",
    "actor_rollout_ref.rollout.top_p",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.max_num_batched_tokens",
    "actor_rollout_ref.rollout.enforce_eager",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.nnodes",
    "trainer.n_gpus_per_node",
    "trainer.save_freq",
    "trainer.resume_mode",
    "trainer.project_name",
    "trainer.experiment_name",
    "trainer.logger",
)


def main(arguments: Sequence[str], upstream_config: str | Path) -> int:
    """Run `azr_overrides.main` with upstream's defaults below ``arguments``; returns its exit code.

    Args:
        arguments: the command line of upstream's entry point, without the program.
        upstream_config: upstream's YAML file.
    """
    from azr_overrides.main import main as run

    defaults = default_overrides(upstream_config)
    print(f"handing over to azr_overrides.main, with {len(defaults)} defaults of {upstream_config}", file=sys.stderr)
    return run([*defaults, *arguments])


def default_overrides(upstream_config: str | Path) -> list[str]:
    """The values of upstream's YAML that belong to `TAKEN`, as overrides in Hydra's grammar.

    Keys that this configuration does not have are left out: they configure what somebody added to their
    checkout.

    Raises:
        FileNotFoundError: no such file.
    """
    content = OmegaConf.to_container(OmegaConf.load(upstream_config), resolve=False)
    assert isinstance(content, dict)
    return [f"{key}={_text(value)}" for key, value in _leaves(content) if _is_taken(key) and is_known(key)]


def _is_taken(key: str) -> bool:
    return any(key == taken or key.startswith(taken + ".") for taken in TAKEN)


def _leaves(node: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _text(value: Any) -> str:
    """A YAML value in Hydra's grammar; interpolations stay what they are."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_text, value))}]"
    if value.startswith("${"):
        return value
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
