"""python -m azr_overrides.main [OVERRIDE ...]: train a population, or the single-agent baseline.

Overrides are Hydra's `key=value`; AZR's own recipe keys are accepted as they are.

  population=single|1t1s|2t2s|4t4s|8t8s   who plays (population.teachers=3 population.students=5 for other numbers)
  device=gpu|cpu                          where
  actor_rollout_ref.model.path=MODEL      the frozen base
  run_dir=DIR                             what is written where; an existing run there is resumed
  trainer.total_training_steps=N          how long
  azr.generate_seed_dataset_only=true     only let the base write seed files (azr.output_seed_path, ...)

Options:
  -h, --help     this text
  --dry-run      print the translated overrides and the resolved configuration, start nothing

SIGTERM, SIGUSR1 and the first Ctrl-C end the run after its current step, with a checkpoint; a second Ctrl-C ends it at
once. The same command resumes.

Exit codes: 0 finished, 1 the run failed, 2 the configuration can't run, 75 stopped on request, 130 interrupted.
"""

import asyncio
import os
import sys
import traceback
from collections.abc import Sequence

from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from azr_overrides.compat import translate
from azr_overrides.config import compose
from azr_overrides.prepare import environment, prepare
from azr_overrides.progress import follow
from azr_overrides.runinfo import RunInfo, seed_file, write_tasks
from azr_overrides.sandbox import IsolationReport, Sandbox, SandboxError
from azr_overrides.seed_stage import SeedingStalled, generate_seeds
from azr_overrides.settings import sandbox_config, seed_tasks
from azr_overrides.tasks.types import Task
from verl_populora.trainer import stopping

OK, FAILED, BAD_CONFIG, STOPPED, INTERRUPTED = 0, 1, 2, 75, 130


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return OK
    dry_run = "--dry-run" in arguments
    try:
        overrides, notices = translate([a for a in arguments if a != "--dry-run"])
        config = compose(overrides)
        prepare(config)
        isolation, seeds = asyncio.run(_verify(config))
    except (HydraException, OmegaConfBaseException, ValueError, OSError, ImportError, SandboxError) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_CONFIG
    for notice in notices:
        print(f"note: {notice}", file=sys.stderr)
    if dry_run:
        print("\n".join(["# overrides", *overrides, "# configuration", OmegaConf.to_yaml(config, resolve=True)]))
        return OK
    if config.azr.generate_seed_dataset_only:
        return _generate_seeds(config)
    print(isolation.summary(), file=sys.stderr)
    write_tasks(seed_file(config), seeds)
    _warn_of_attention(config)
    _warn_of_memory(config)
    return _run(config, isolation)


def _warn_of_attention(config: DictConfig) -> None:
    model = config.actor_rollout_ref.model
    packed_on_gpu = config.trainer.device == "cuda" and model.use_remove_padding
    if packed_on_gpu and model.override_config.attn_implementation == "sdpa":
        print(
            "warning: training attends with sdpa: the mask between packed sequences grows with the square of "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu. Install flash-attn to avoid it",
            file=sys.stderr,
        )


def _warn_of_memory(config: DictConfig) -> None:
    """An estimate does not stop a run."""
    if config.trainer.device != "cuda":
        return
    from azr_overrides.memory import shortfalls  # imports transformers, which takes seconds

    for problem in shortfalls(config):
        print(f"warning: {problem} (docs/memory.md)", file=sys.stderr)


def _generate_seeds(config: DictConfig) -> int:
    os.environ.update(environment(config))
    try:
        generate_seeds(config)
    except (SeedingStalled, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return OK


def _run(config: DictConfig, isolation: IsolationReport) -> int:
    info = RunInfo.start(config, isolation)
    try:
        with follow(config):
            # verl, Ray and vLLM are imported here: a wrong configuration is told without waiting for them.
            os.environ.update(environment(config))
            from azr_overrides.launch import train

            train(config)
    except KeyboardInterrupt:
        info.finish("interrupted")
        print(f"interrupted; the same command resumes from {config.trainer.default_local_dir}", file=sys.stderr)
        return INTERRUPTED
    except BaseException as error:
        cause = getattr(error, "cause", None) or error
        info.finish(f"failed: {type(cause).__name__}: {cause}")
        traceback.print_exception(error)
        for line in (f"\nthe run failed: {cause}", *getattr(error, "__notes__", ()), "The same command resumes it."):
            print(line, file=sys.stderr)
        return FAILED
    if stopping.requested(config.run_dir):
        info.finish("stopped")
        print("stopped on request; the same command resumes", file=sys.stderr)
        return STOPPED
    info.finish("finished")
    return OK


async def _verify(config: DictConfig) -> tuple[IsolationReport, list[Task]]:
    """Measure the isolation that this machine gives to model-written programs, and execute the seed tasks in it.

    Raises:
        SandboxError: the isolation is below ``azr.sandbox.min_isolation``.
        ValueError: a seed file is damaged.
    """
    async with Sandbox(sandbox_config(config)) as sandbox:
        return sandbox.isolation, await seed_tasks(config, sandbox)


if __name__ == "__main__":
    sys.exit(main())
