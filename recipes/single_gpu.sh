#!/usr/bin/env bash
# A population on one GPU of 24 to 80 GB: a smaller base on a smaller card, shorter texts, offload.
#
#   bash recipes/single_gpu.sh [--dry-run] [OVERRIDE ...]        e.g. population=4t4s trainer.total_training_steps=20
#
#   CARD_GB   memory of the card   (default: what nvidia-smi says, 24 without it)
#             below 40: Qwen2.5-Coder-1.5B and 4,096 tokens; below 70: 3B and 6,144; else 7B and 8,192
#
# The same command resumes. MODEL, POPULATION (default 2t2s), RUN_DIR, STEPS (200) and PYTHON are read from the
# environment (recipes/lib/train.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/train.sh"

card_mib() { nvidia-smi --query-gpu=memory.total --format=csv,noheader,nounits 2>/dev/null || echo 24000; }
card_gb="${CARD_GB:-$(($(card_mib | head -n 1) / 1000))}"
((card_gb >= 22)) || { echo "error: a card of $card_gb GB is too small; 24 GB are needed" >&2; exit 2; }

# The logits of a micro-batch are its tokens times 150,000 words, in float32 and with their gradient: they decide how
# many tokens fit beside the base, which is in memory twice when vLLM is awake.
if ((card_gb < 40)); then
    model=Qwen/Qwen2.5-Coder-1.5B tokens=4096
elif ((card_gb < 70)); then
    model=Qwen/Qwen2.5-Coder-3B tokens=6144
else
    model=Qwen/Qwen2.5-Coder-7B tokens=8192
fi

OVERRIDES=(
    device=gpu
    "actor_rollout_ref.model.path=${MODEL:-$model}"
    trainer.nnodes=1
    trainer.n_gpus_per_node=1
    actor_rollout_ref.model.lora_rank=32
    actor_rollout_ref.model.lora_alpha=64
    actor_rollout_ref.actor.fsdp_config.param_offload=true
    actor_rollout_ref.actor.fsdp_config.optimizer_offload=true
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.gpu_memory_utilization=0.5
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=$tokens"
    "actor_rollout_ref.rollout.max_num_batched_tokens=$tokens"
    actor_rollout_ref.rollout.max_num_seqs=128
    "data.max_prompt_length=$((tokens / 2))"
    "data.max_response_length=$((tokens / 2))"
    "azr.data_selection_strategy.content_max_length=$((tokens / 2))"
    data.train_batch_size=16
    azr.reward.n_samples=8
    population.budget=total
    "trainer.total_training_steps=${STEPS:-200}"
    trainer.save_freq=10
)
train single_gpu 2t2s "$@"
