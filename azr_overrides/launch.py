"""Start Ray, hand the configuration to verl's task runner with our trainer in it, and wait."""

import os
from pathlib import Path

import ray
import verl.trainer.main_ppo as main_ppo
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from azr_overrides.prepare import environment

_TaskRunner = main_ppo.TaskRunnerV1.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class PopulationTaskRunner(_TaskRunner):
    """verl's task runner; its trainer is AzrTrainer."""

    def run(self, config: DictConfig) -> None:
        from patches.verl_surface import check
        from verl.trainer.ppo.v1 import trainer_base

        from azr_overrides.trainer import AzrTrainer

        check()
        # The registered name stays "sync": verl decides by it which replay buffer and which submission path to use.
        trainer_base.TRAINER_REGISTRY["sync"] = AzrTrainer
        super().run(config)


def train(config: DictConfig) -> None:
    """Run the training to its end; raises what it raises.

    Raises:
        ray.exceptions.RayTaskError: training failed; the cause is its ``cause``.
    """
    variables = environment(config)
    os.environ.update(variables)
    validate_config(
        config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config)
    )
    with open_dict(config):
        init = config.ray_kwargs.ray_init
        runtime = OmegaConf.to_container(init.get("runtime_env") or OmegaConf.create({}))
        assert isinstance(runtime, dict)
        init.runtime_env = runtime | {"env_vars": variables | (runtime.get("env_vars") or {})}
        # Workers write to Ray's log files; the run directory and the driver say what a person needs.
        init.setdefault("log_to_driver", bool(config.verbose))
        init.setdefault("logging_level", "warning")
    try:
        main_ppo.run_ppo(config, task_runner_class=ray.remote(PopulationTaskRunner))
    finally:
        ray.shutdown()


def ray_logs() -> Path | None:
    """Where the workers of this run log."""
    if not ray.is_initialized():
        return None
    return Path(ray._private.worker._global_node.get_logs_dir_path())  # type: ignore[attr-defined]
