"""Build the population engine in this process, and batches for it, as verl's trainer would."""

import os
from functools import cache

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from verl_populora.layout import PopulationLayout

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def init_process_group():
    if not dist.is_initialized():
        os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
        dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def make_engine(
    model,
    teachers=2,
    students=2,
    seed=3,
    rank=4,
    learning_rates=None,
    lr=1e-3,
    optimizer="AdamW",
    packed=False,
    **lora,
):
    from verl.trainer.config import CheckpointConfig
    from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig

    from verl_populora.engine.actor import PopulationEngine

    init_process_group()
    torch.manual_seed(0)
    layout = PopulationLayout.build(teachers, students)
    model_config = HFModelConfig(
        path=str(model),
        lora_rank=rank,
        lora_alpha=2 * rank,
        use_remove_padding=packed,
        enable_gradient_checkpointing=False,
        override_config={"attn_implementation": "sdpa"},
        target_modules=TARGETS,
        lora={
            "population": layout.to_config(),
            "population_seed": seed,
            "learning_rates": learning_rates or {},
            **lora,
        },
    )
    model_config.model_type = "language_model"
    fp32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    engine = PopulationEngine(
        model_config=model_config,
        engine_config=FSDPEngineConfig(
            strategy="fsdp2", use_torch_compile=False, model_dtype="fp32", mixed_precision=fp32
        ),
        optimizer_config=FSDPOptimizerConfig(lr=lr, optimizer=optimizer, total_training_steps=10),
        checkpoint_config=CheckpointConfig(),
    )
    engine.initialize()
    return engine


def sample(adapter_id, length, advantage, prompt=6):
    """One training sample: ``prompt`` prompt tokens and ``length`` response tokens, deterministic content."""
    generator = torch.Generator().manual_seed(1000 * adapter_id + length)
    ids = torch.randint(10, 200, (prompt + length,), generator=generator)
    return {"adapter_id": adapter_id, "ids": ids, "prompt": prompt, "advantage": advantage}


def batch_of(samples, calculate_entropy=False, packed=False):
    """The TensorDict that verl's worker hands to ``train_batch``."""
    from verl.utils import tensordict_utils as tu

    def nested(rows):
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    lengths = [len(s["ids"]) - s["prompt"] for s in samples]
    return tu.get_tensordict(
        {
            "input_ids": nested([s["ids"] for s in samples]),
            "position_ids": nested([torch.arange(len(s["ids"])) for s in samples]),
            "prompts": nested([s["ids"][: s["prompt"]] for s in samples]),
            "responses": nested([s["ids"][s["prompt"] :] for s in samples]),
            "response_mask": nested([torch.ones(n, dtype=torch.int64) for n in lengths]),
            "loss_mask": nested([torch.ones(n, dtype=torch.int64) for n in lengths]),
            "old_log_probs": nested([torch.full((n,), -3.0) for n in lengths]),
            "advantages": nested(
                [torch.full((n,), float(s["advantage"])) for s, n in zip(samples, lengths, strict=True)]
            ),
            "adapter_id": torch.tensor([s["adapter_id"] for s in samples]),
        },
        non_tensor_dict={
            "use_dynamic_bsz": True,
            "max_token_len_per_gpu": 120,
            "temperature": 1.0,
            "global_batch_size": len(samples),
            "calculate_entropy": calculate_entropy,
            "use_remove_padding": packed,
        },
    )


class _Loss:
    """verl's PPO loss with its configuration, as ``functools.partial`` carries it."""

    def __init__(self, entropy_coeff):
        from functools import partial

        from verl.workers.config import FSDPActorConfig
        from verl.workers.utils.losses import ppo_loss

        config = FSDPActorConfig(
            strategy="fsdp2", ppo_micro_batch_size_per_gpu=1, loss_agg_mode="token-mean", clip_ratio_high=1e9,
            clip_ratio_low=1.0, clip_ratio=1.0, clip_ratio_c=1e9, rollout_n=1, use_dynamic_bsz=True,
            entropy_coeff=entropy_coeff,
        )  # fmt: skip
        self.partial = partial(ppo_loss, config=config)


@cache
def ppo_partial(entropy_coeff=0.0):
    return _Loss(entropy_coeff).partial
