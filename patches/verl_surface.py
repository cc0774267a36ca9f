"""Every member of verl, vLLM and PEFT that this project overrides or reaches into, with the signature it relies on.

These are not public interfaces: another version may move them without notice. The check runs at the start of each
training; a drift stops the run with the name of what moved, instead of training on something else. Run
`python -m patches.verl_surface` to see the whole surface with file and line.
"""

import importlib
import inspect
import os
import sys
from dataclasses import dataclass

import torch

SUPPORTED_VERL = "0.9.1"


@dataclass(frozen=True, slots=True)
class Surface:
    """One member: ``module:Class.member`` or ``module:function``, and its parameter names."""

    path: str
    parameters: str
    used_by: str  # our module


_ENGINE = "verl.workers.engine.fsdp.transformer_impl:FSDPEngineWithLMHead"
_TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
_SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
_EXTENSION = "verl.workers.rollout.vllm_rollout.utils:vLLMColocateWorkerExtension"
_WORKER = "verl.workers.engine_workers:ActorRolloutRefWorker"
_LOOPS = "verl.trainer.ppo.v1.agent_loop_tq"

SURFACE = (
    Surface(f"{_ENGINE}._build_lora_module", "self module", "engine.actor"),
    Surface(f"{_ENGINE}._build_optimizer", "self module", "engine.actor"),
    Surface(f"{_ENGINE}.forward_step", "self micro_batch loss_function forward_only", "engine.actor"),
    Surface(f"{_ENGINE}.train_batch", "self data loss_function", "engine.actor"),
    Surface(f"{_ENGINE}.optimizer_step", "self", "engine.actor"),
    Surface(f"{_ENGINE}.disable_adapter", "self", "engine.actor"),
    Surface(f"{_ENGINE}.get_per_tensor_param", "self layered_summon base_sync_done kwargs", "engine.actor"),
    Surface(f"{_ENGINE}.save_checkpoint", "self local_path hdfs_path global_step max_ckpt_to_keep kwargs", "engine.actor"),
    Surface(f"{_ENGINE}.load_checkpoint", "self local_path hdfs_path del_local_after_load kwargs", "engine.actor"),
    Surface("verl.utils.fsdp_utils:fsdp2_clip_grad_norm_", "parameters max_norm norm_type error_if_nonfinite foreach", "engine.actor"),
    Surface("verl.workers.config.optimizer:build_optimizer", "parameters config", "engine.actor"),
    Surface("verl.workers.engine.base:EngineRegistry.register", "model_type backend device vendor", "engine.actor"),
    Surface("verl.trainer.ppo.core_algos:agg_loss", "loss_mat loss_mask loss_agg_mode dp_size batch_num_tokens global_batch_size loss_scale_factor", "engine.entropy"),
    Surface("verl.workers.utils.padding:no_padding_2_padding", "tensor data", "engine.entropy"),
    Surface(f"{_WORKER}.init_model", "self", "engine.worker"),
    Surface(f"{_WORKER}.update_weights", "self global_steps mode", "engine.worker"),
    Surface(f"{_SERVER}.__init__", "self config model_config rollout_mode workers replica_rank node_rank gpus_per_node nnodes cuda_visible_devices disaggregation_role disaggregation_kv_transfer_config", "engine.rollout"),
    Surface(f"{_SERVER}._get_worker_extension_cls", "self", "engine.rollout"),
    Surface(f"{_SERVER}.run_server", "self args", "engine.rollout"),
    Surface(f"{_SERVER}.generate", "self prompt_ids sampling_params request_id image_data video_data audio_data mm_processor_kwargs priority kv_transfer_params", "engine.rollout"),
    Surface(f"{_SERVER}.clear_kv_cache", "self", "engine.rollout"),
    Surface(f"{_EXTENSION}._update_weights", "self weights peft_config base_sync_done", "engine.worker_extension"),
    Surface("verl.utils.vllm:TensorLoRARequest.__struct_fields__", "", "engine.worker_extension"),
    Surface("vllm.lora.model_manager:LoRAModelManager.get_adapter", "self adapter_id", "engine.worker_extension"),
    Surface(f"{_TRAINER}._init_dataloader", "self", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._init_resource_pool_mgr", "self", "trainer.population_trainer"),
    Surface(f"{_TRAINER}.step", "self metrics timing_raw", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._next_train_batch", "self num_prompts", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._get_required_batch_multiple", "self dp_size", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._compute_advantage", "self batch metrics", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._update_actor", "self batch metrics", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._save_checkpoint", "self", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._load_checkpoint", "self", "trainer.population_trainer"),
    Surface(f"{_TRAINER}._compute_metrics", "self batch metrics timing_raw global_steps epoch", "trainer.population_trainer"),
    Surface("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._materialize_batch", "self partition_id selected_prompt_uids partition_snapshot", "trainer.replay"),
    Surface("verl.trainer.ppo.v1.replay_buffer:ReplayBuffer._wait_for_next_poll", "self partition_id last_debug_time", "trainer.replay"),
    Surface("verl.utils.tracking:Tracking.__init__", "self project_name experiment_name default_backend config", "trainer.trackers"),
    Surface("verl.utils.tracking:Tracking.log", "self data step backend", "trainer.trackers"),
    Surface("verl.utils.tracking:Tracking.finish", "self exit_code", "trainer.trackers"),
    Surface(f"{_LOOPS}:AgentLoopWorkerTQ._agent_loop_postprocess", "self output validate kwargs", "agent_loop"),
    Surface(f"{_LOOPS}:AgentLoopManagerTQ.__init__", "self args kwargs", "agent_loop"),
    Surface("verl.workers.rollout.llm_server:LLMServerClient.generate", "self request_id prompt_ids sampling_params image_data video_data audio_data mm_processor_kwargs kwargs", "agent_loop"),
    Surface("verl.trainer.main_ppo:TaskRunnerV1.run", "self config", "launch"),
)  # fmt: skip

_RAY_EXTRA = "_ray_trace_ctx"  # Ray adds it to the methods of actor classes


class SurfaceDrift(RuntimeError):
    """An upstream member is gone or has other parameters."""


def check() -> None:
    """Compare the installed packages with the table.

    Raises:
        SurfaceDrift: naming each member that moved.
    """
    import verl

    problems = [problem for surface in SURFACE if (problem := drift(surface)) is not None]
    problems += _lora_request_problems()
    if problems:
        raise SurfaceDrift(
            f"the installed verl ({verl.__version__}) or vLLM is not the one that this project was written for "
            f"(verl {SUPPORTED_VERL}); install the versions of the requirements files. What moved:\n  "
            + "\n  ".join(problems)
        )


def drift(surface: Surface) -> str | None:
    """What differs from the table, or None."""
    try:
        member = resolve(surface.path)
    except (ImportError, AttributeError) as error:
        return f"{surface.path} (used by {surface.used_by}): {error}"
    if not callable(member):
        return None
    found = " ".join(p for p in inspect.signature(member).parameters if p != _RAY_EXTRA)
    if found == surface.parameters:
        return None
    return f"{surface.path} (used by {surface.used_by}): expected ({surface.parameters}), found ({found})"


def resolve(path: str):
    """The object that ``module:Class.member`` names; Ray actor classes are looked through."""
    module, qualified = path.split(":")
    target = importlib.import_module(module)
    for name in qualified.split("."):
        if hasattr(target, "__ray_metadata__"):
            target = target.__ray_metadata__.modified_class
        target = getattr(target, name)
    return inspect.unwrap(target) if callable(target) else target


def _lora_request_problems() -> list[str]:
    from vllm.lora.request import LoRARequest

    if "load_inplace" in LoRARequest.__struct_fields__:
        return []
    return ["vllm.lora.request:LoRARequest has no load_inplace: adapters could not be replaced in place"]


def main() -> int:
    """Print the surface; exit code 1 on drift."""
    # verl decides at its import on which platform it is, and without a GPU refuses vLLM's build for a CPU.
    if not torch.cuda.is_available():
        os.environ.setdefault("VERL_PLATFORM", "cpu")
        os.environ.setdefault("VERL_USE_EXTERNAL_MODULES", "verl_populora.engine.platform_cpu")
    failed = False
    for surface in SURFACE:
        problem = drift(surface)
        failed |= problem is not None
        where = ""
        if problem is None and callable(member := resolve(surface.path)):
            where = f"{inspect.getsourcefile(member)}:{inspect.getsourcelines(member)[1]}"
        print(problem or f"ok  {surface.path}  {where}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
