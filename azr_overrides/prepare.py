"""From a composed configuration to one that can run: what can be refused is refused here, before Ray starts."""

import importlib.util
import json
import os
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import MissingMandatoryValue

from azr_overrides.settings import population_rules, prompt_set
from azr_overrides.sizes import StepSizes, step_sizes
from azr_overrides.tasks.guessing import GuessRule
from azr_overrides.tasks.prompts import CHAT_STYLES, RAW_CHAT_TEMPLATE
from verl_populora.adapters.initial import read_initial
from verl_populora.adapters.peft_io import CONFIG_FILE
from verl_populora.layout import PopulationLayout
from verl_populora.population import Population
from verl_populora.trainer import checkpoints

POPULATION_ESTIMATOR = "populora_rf_plus_plus"
SINGLE_ESTIMATOR = "azr_trr_plus_plus"
_TRACKER_PACKAGES = {
    "wandb": "wandb",
    "mlflow": "mlflow",
    "swanlab": "swanlab",
    "tensorboard": "tensorboard",
    "clearml": "clearml",
    "trackio": "trackio",
}
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


class ConfigError(ValueError):
    """The configuration can't run; the message says which key and what to do."""


def prepare(config: DictConfig) -> StepSizes:
    """Check ``config`` and complete it in place.

    Returns:
        The counts of one step.

    Raises:
        ConfigError: a value is missing, impossible or points to nothing.
        OSError: the run directory can't be written.
    """
    try:
        layout = PopulationLayout.build(
            int(config.population.teachers),
            int(config.population.students),
            guest=float(config.population.evolution.hall_of_fame_matches) > 0,
        )
        Population(layout, population_rules(config), int(config.seed))  # makes every part that is named
        sizes = step_sizes(config)
        GuessRule.from_config(config)
    except MissingMandatoryValue as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _check_model(config)
    _choose_attention(config)
    _apply_chat_style(config)
    _check_unsupported(config)
    for key in ("azr.seed_dataset", "azr.error_seed_dataset", "azr.code_f_seed_dataset"):
        _check_file(config, key)
    _check_initial_adapters(config, layout)
    _check_trackers(config)
    with open_dict(config):
        lora = config.actor_rollout_ref.model.lora
        lora.population = layout.to_config()
        lora.population_seed = int(config.seed)
        lora.learning_rates = config.population.learning_rates
        lora.entropy_coeff = config.population.entropy_coeff
        if any(config.population.entropy_coeff.values()):
            config.actor_rollout_ref.actor.calculate_entropy = True
        if config.algorithm.adv_estimator is None:
            config.algorithm.adv_estimator = SINGLE_ESTIMATOR if sizes.solver_tasks else POPULATION_ESTIMATOR
        if config.population.initial_adapters is not None:
            config.population.initial_adapters = str(Path(config.population.initial_adapters).expanduser().absolute())
        config.run_dir = str(Path(config.run_dir).absolute())
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).absolute())
    checkpoints.check_writable(Path(config.run_dir))
    checkpoints.check_writable(Path(config.trainer.default_local_dir))
    _check_resume(config, layout)
    return sizes


def _check_model(config: DictConfig) -> None:
    path = OmegaConf.select(config, "actor_rollout_ref.model.path", throw_on_missing=False)
    if path is None:
        raise ConfigError(
            "actor_rollout_ref.model.path is not set; pass a folder with a causal language model or a name on the hub, "
            "for example actor_rollout_ref.model.path=Qwen/Qwen2.5-Coder-7B"
        )
    folder = Path(path).expanduser()
    if folder.is_dir():
        _check_model_folder(folder)
    elif not _HUB_NAME.fullmatch(path) or path.startswith((".", "/")):
        raise ConfigError(f"actor_rollout_ref.model.path={path}: there is no such folder")
    model = config.actor_rollout_ref.model
    if int(model.lora_rank) < 1:
        raise ConfigError(f"actor_rollout_ref.model.lora_rank must be at least 1, not {model.lora_rank}")
    if model.lora_adapter_path is not None:
        raise ConfigError(
            "actor_rollout_ref.model.lora_adapter_path starts all of verl's training from one adapter; to start "
            "members from adapters of their own use population.initial_adapters"
        )


def _choose_attention(config: DictConfig) -> None:
    """verl would load the trained model with flash-attention 2, whose package no requirements file can name for all."""
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    chosen = OmegaConf.select(config, key) or "auto"
    installed = importlib.util.find_spec("flash_attn") is not None
    if chosen == "auto":
        chosen = "flash_attention_2" if installed else "sdpa"
    elif chosen == "flash_attention_2" and not installed:
        raise ConfigError(f"{key}={chosen} needs the package flash-attn: install it, or set it to auto or sdpa")
    OmegaConf.update(config, key, chosen, force_add=True)


def _apply_chat_style(config: DictConfig) -> None:
    """How messages become tokens: as azr.chat says, or as the prompts were written for."""
    chat = config.azr.chat or prompt_set(config).chat
    if chat not in CHAT_STYLES:
        raise ConfigError(f"azr.chat={chat}: choose one of {', '.join(CHAT_STYLES)}, or null")
    model = config.actor_rollout_ref.model
    if chat == "raw" and model.custom_chat_template is None:
        model.custom_chat_template = RAW_CHAT_TEMPLATE


def _check_model_folder(folder: Path) -> None:
    """A folder must be a complete model, and its tokenizer must name every token that the model can emit."""
    settings = folder / "config.json"
    if not settings.is_file():
        raise ConfigError(f"{folder} has no config.json, so it is not a model folder")
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise ConfigError(f"{folder} has no weights (*.safetensors)")
    vocabulary = json.loads(settings.read_text()).get("vocab_size")
    tokenizer = folder / "tokenizer.json"
    if vocabulary is None or not tokenizer.is_file():
        return
    parsed = json.loads(tokenizer.read_text())
    names = set(parsed.get("model", {}).get("vocab", {})) | {t["content"] for t in parsed.get("added_tokens", [])}
    if vocabulary < len(names):
        raise ConfigError(f"{folder}: the tokenizer has {len(names)} tokens, the model only {vocabulary}")


def _check_unsupported(config: DictConfig) -> None:
    """Refuse what verl offers but a population can't do, by name."""
    refused: list[tuple[str, Any, str]] = [
        ("actor_rollout_ref.rollout.name", lambda v: v != "vllm", "members are served by vLLM"),
        (
            "actor_rollout_ref.rollout.n",
            lambda v: v != 1,
            "an episode makes its own samples; use population.attempts",
        ),
        ("actor_rollout_ref.actor.strategy", lambda v: v != "fsdp2", "only fsdp2 is supported"),
        (
            "actor_rollout_ref.rollout.load_format",
            lambda v: "dummy" in v,
            "the rollout must load the base itself",
        ),
        ("actor_rollout_ref.rollout.calculate_log_probs", lambda v: not v, "the canary needs them"),
        ("actor_rollout_ref.model.lora.merge", bool, "members can't be merged into one base"),
        ("algorithm.use_kl_in_reward", bool, "use actor_rollout_ref.actor.use_kl_loss"),
        ("azr.data_selection_strategy.update_iteration", lambda v: v != 1, "every step plans its own tasks"),
        ("azr.train_propose", lambda v: not v, "proposing is what is trained; see azr.pretrain_pred_steps"),
        ("trainer.v1.trainer_mode", lambda v: v != "sync", "only the synchronous trainer is supported"),
        ("trainer.val_before_train", bool, "evaluate checkpoints with `python -m eval`"),
        ("trainer.test_freq", lambda v: v > 0, "evaluate checkpoints with `python -m eval`"),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            lambda v: v > 1,
            "adapters are chosen by sample",
        ),
    ]
    for key, is_bad, why in refused:
        value = OmegaConf.select(config, key)
        if value is not None and is_bad(value):
            raise ConfigError(f"{key}={value} is not supported: {why}")
    if OmegaConf.select(config, "algorithm.filter_groups.enable"):
        raise ConfigError("algorithm.filter_groups mixes the samples of teachers and students; leave it off")


def _check_file(config: DictConfig, key: str) -> None:
    path = OmegaConf.select(config, key)
    if path is not None and not Path(path).expanduser().is_file():
        raise ConfigError(f"{key}={path}: there is no such file")


def _check_initial_adapters(config: DictConfig, layout: PopulationLayout) -> None:
    folder = config.population.initial_adapters
    if folder is None:
        return
    model = config.actor_rollout_ref.model
    try:
        read_initial(
            Path(folder).expanduser(), layout.seats, str(model.path), int(model.lora_rank), float(model.lora_alpha)
        )
    except (OSError, ValueError) as error:
        raise ConfigError(f"population.initial_adapters: {error}") from error


def _check_trackers(config: DictConfig) -> None:
    """A tracker whose package is missing is a mistake; one that fails later is only counted (docs/faults.md)."""
    loggers = config.trainer.logger
    for name in [loggers] if isinstance(loggers, str) else loggers:
        package = _TRACKER_PACKAGES.get(name)
        if package is not None and importlib.util.find_spec(package) is None:
            raise ConfigError(f"trainer.logger has {name}, but the Python package {package} is not installed")


def _check_resume(config: DictConfig, layout: PopulationLayout) -> None:
    trainer = config.trainer
    if trainer.resume_mode not in ("auto", "disable", "resume_path"):
        raise ConfigError(f"trainer.resume_mode={trainer.resume_mode}: choose auto, disable or resume_path")
    newest = checkpoints.latest(Path(trainer.default_local_dir))
    if trainer.resume_mode == "disable":
        _check_newest(newest, 0)
        return
    folder: Path | None
    if trainer.resume_mode == "resume_path":
        folder = Path(str(trainer.resume_from_path))
        if not (folder / "population.json").is_file():
            raise ConfigError(f"trainer.resume_from_path={folder} is not a checkpoint: it has no population.json")
        _check_newest(newest, checkpoints.step_of(folder))
    else:
        folder = newest
    if folder is None:
        return
    state = json.loads((folder / "population.json").read_text())
    seats = tuple(member["seat"] for member in state["members"])
    if seats != layout.seats:
        raise ConfigError(
            f"{folder} holds {len(seats)} members ({', '.join(seats)}), but this run is configured for "
            f"{', '.join(layout.seats)}. Use another run_dir or the same population="
        )
    if Path(state["base_model"]).name != Path(str(config.actor_rollout_ref.model.path)).name:
        raise ConfigError(
            f"{folder} was trained on {state['base_model']}, not on {config.actor_rollout_ref.model.path}; "
            "adapters fit only the base they were trained on"
        )
    settings = json.loads((folder / state["members"][0]["adapter"] / CONFIG_FILE).read_text())
    model = config.actor_rollout_ref.model
    if settings["r"] != int(model.lora_rank) or settings["lora_alpha"] != float(model.lora_alpha):
        raise ConfigError(
            f"{folder} holds adapters of rank {settings['r']} and alpha {settings['lora_alpha']}, but "
            f"actor_rollout_ref.model.lora_rank is {model.lora_rank} and lora_alpha {model.lora_alpha}. Resume with "
            "the same, or use another run_dir"
        )


def _check_newest(newest: Path | None, step: int) -> None:
    """A run that goes back would leave checkpoints of another history, and the next resume would take them."""
    if newest is not None and checkpoints.step_of(newest) > step:
        raise ConfigError(
            f"this run would start after step {step}, but {newest} is later. Use trainer.resume_mode=auto to continue "
            "from that one, another run_dir, or move the later checkpoints away"
        )


def environment(config: DictConfig) -> dict[str, str]:
    """Environment variables that every process of the run needs, the driver included."""
    variables = {
        "VERL_ENGINE_VENDOR": "populora",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_NO_USAGE_STATS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")])),
    }
    if not config.verbose:
        variables |= {"VERL_LOGGING_LEVEL": "WARN", "VLLM_LOGGING_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"}
    if config.trainer.device == "cpu":
        variables |= {
            "VERL_PLATFORM": "cpu",
            "VERL_USE_EXTERNAL_MODULES": "verl_populora.engine.platform_cpu",
            "VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE", "1"),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Otherwise vLLM does not run the model in its engine's process (rollout.engine_kwargs in device/cpu.yaml).
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            # vLLM compiles two small parts of its sampler, again when the batch changes, for no gain here.
            "TORCH_COMPILE_DISABLE": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, min(8, os.cpu_count() or 1)))),
            # Ray gives its workers low priority and starts spare ones; on a small machine both only cost.
            "RAY_worker_niceness": "0",
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
        }
    if Path(str(config.actor_rollout_ref.model.path)).is_dir():
        variables |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return variables
