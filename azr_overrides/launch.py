"""Start Ray, hand the configuration to verl's task runner with our trainer in it, and wait."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
import ray.exceptions
import verl.trainer.main_ppo as main_ppo
from omegaconf import DictConfig, OmegaConf, open_dict
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.utils import need_critic, need_reference_policy
from verl.utils.config import validate_config

from azr_overrides.prepare import environment
from verl_populora.trainer import stopping

_TaskRunner = main_ppo.TaskRunnerV1.__ray_metadata__.modified_class  # type: ignore[attr-defined]


class PopulationTaskRunner(_TaskRunner):
    """verl's task runner; its trainer is AzrTrainer."""

    def run(self, config: DictConfig) -> None:
        from verl.trainer.ppo.v1 import trainer_base

        from azr_overrides.trainer import AzrTrainer
        from patches.verl_surface import check
        from verl_populora.logs import show_messages
        from verl_populora.trainer.trackers import Trackers

        show_messages()
        check()
        trainer_base.Tracking = Trackers  # pyright: ignore[reportPrivateImportUsage]
        # The registered name stays "sync": verl decides by it which replay buffer and which submission path to use.
        trainer_base.TRAINER_REGISTRY["sync"] = AzrTrainer
        super().run(config)


def train(config: DictConfig) -> None:
    """Run the training to its end, or to the end of the step in which the process is asked to stop.

    SIGTERM, SIGUSR1 and the first Ctrl-C end the run after its current step with a checkpoint; a second Ctrl-C ends it
    at once.

    Raises:
        ray.exceptions.RayTaskError: training failed; the cause is its ``cause``.
        KeyboardInterrupt: at the second Ctrl-C.
    """
    validate_config(config=config, use_reference_policy=need_reference_policy(config), use_critic=need_critic(config))
    stopping.clear(config.run_dir)
    _start_ray(config)
    try:
        # After ray.init, which installs a SIGTERM handler of its own.
        with _stop_on_signals(config.run_dir):
            main_ppo.run_ppo(config, task_runner_class=ray.remote(PopulationTaskRunner))
    except ray.exceptions.RayError as error:
        error.add_note(f"What the workers logged is in {_log_folder()}")
        raise
    finally:
        ray.shutdown()


def _log_folder() -> str:
    # Ray has no public name for its log folder.
    node = ray._private.worker._global_node  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
    return node.get_logs_dir_path() if node is not None else "Ray's log folder on the cluster's nodes"


def _start_ray(config: DictConfig) -> None:
    """Start or join Ray with this run's environment in every worker."""
    variables = environment(config)
    os.environ.update(variables)
    settings: dict[str, Any] = OmegaConf.to_container(
        config.ray_kwargs.get("ray_init") or OmegaConf.create({}), resolve=True
    )  # type: ignore[assignment]
    if settings.get("address") or os.environ.get("RAY_ADDRESS"):
        # A cluster that is there has its sizes; Ray refuses to join with others.
        for key in ("num_cpus", "num_gpus", "object_store_memory", "include_dashboard"):
            settings.pop(key, None)
    runtime = OmegaConf.merge(get_ppo_ray_runtime_env(config), settings.pop("runtime_env", None) or {})
    with open_dict(runtime):
        runtime.env_vars = OmegaConf.merge(runtime.env_vars, variables, {"TRANSFER_QUEUE_ENABLE": "1"})
    # Workers write to Ray's log files; the run directory and the driver say what a person needs.
    quiet = {"log_to_driver": bool(config.verbose), "logging_level": "warning"}
    ray.init(**(quiet | settings), runtime_env=OmegaConf.to_container(runtime))


@contextmanager
def _stop_on_signals(run_dir: str) -> Iterator[None]:
    def stop(number: int, _frame) -> None:
        if number == signal.SIGINT and stopping.requested(run_dir):
            raise KeyboardInterrupt
        stopping.request(run_dir)
        print("stopping after this step, with a checkpoint; Ctrl-C again stops at once", file=sys.stderr)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
