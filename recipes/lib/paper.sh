# Sourced by the recipes of AZR's model sizes: the paper's setting, which they share. Sets OVERRIDES.
#
# Numbers that are also defaults are repeated, so that a recipe stays the paper's when a default changes.
OVERRIDES=(
    device=gpu
    actor_rollout_ref.model.lora_rank=32
    actor_rollout_ref.model.lora_alpha=64
    actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.rollout.temperature=1.0
    data.train_batch_size=64
    data.max_prompt_length=6144
    data.max_response_length=8096
    azr.reward.n_samples=8
    # A task's prompt, a whole answer and the rollout's batch fit one packed sequence of this many tokens.
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384
    actor_rollout_ref.rollout.max_num_batched_tokens=16384
    "trainer.total_training_steps=${STEPS:-200}"
    "trainer.nnodes=${NODES:-1}"
    trainer.save_freq=10
)

# paper_model MODEL GPUS TENSOR_PARALLEL: the base, the GPUs of a node, and over how many of them one engine is spread.
paper_model() {
    OVERRIDES+=(
        "actor_rollout_ref.model.path=${MODEL:-$1}"
        "trainer.n_gpus_per_node=${GPUS:-$2}"
        "actor_rollout_ref.rollout.tensor_model_parallel_size=$3"
    )
}
