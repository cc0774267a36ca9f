# Sourced by recipes: the overrides that make AZR's configuration fit the tiny base, and a CPU.
TINY_BASE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
TINY_OVERRIDES=(
    device=cpu
    "actor_rollout_ref.model.path=$TINY_BASE/model"
    actor_rollout_ref.model.lora_rank=8
    actor_rollout_ref.model.lora_alpha=16
    actor_rollout_ref.actor.optim.lr=3e-4
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192
    actor_rollout_ref.rollout.max_model_len=448
    data.max_prompt_length=256
    data.max_response_length=192
    data.train_batch_size=2
    azr.reward.n_samples=4
    "azr.prompt_source=$TINY_BASE/prompts.yaml"
    azr.data_selection_strategy.io_n=1
    azr.data_selection_strategy.num_inputs=4
    azr.execute_max_timeout=2
    "azr.seed_dataset=$TINY_BASE/seeds/seed_io.jsonl"
    "azr.code_f_seed_dataset=$TINY_BASE/seeds/code_f_seed_io.jsonl"
    reward_fn.extraction_type=answer_conditional
)
