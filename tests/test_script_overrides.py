"""Override lists of AZR's shipped scripts, and the rules by which single keys are translated."""

import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from azr_overrides.compat import ADAPTED, MOVED, UnknownKey, translate
from azr_overrides.config import compose

SCRIPTS = Path(os.environ.get("AZR_SCRIPT_OVERRIDES", Path(__file__).parents[2] / "shared/azr/script_overrides.json"))


def script_overrides() -> dict[str, list[str]]:
    return json.loads(SCRIPTS.read_text()) if SCRIPTS.is_file() else {}


@pytest.mark.skipif(not SCRIPTS.is_file(), reason="AZR_SCRIPT_OVERRIDES not available")
@pytest.mark.parametrize("script", script_overrides())
def test_every_shipped_script_composes(script, monkeypatch):
    for name in ("OUTPUT_SEED_PATH", "OUTPUT_ERROR_SEED_PATH", "OUTPUT_CODE_F_SEED_PATH"):
        monkeypatch.setenv(name, f"data/{name.lower()}.jsonl")
    overrides = [os.path.expandvars(text) for text in script_overrides()[script]]
    translated, notices = translate([*overrides, "population=4t4s"])
    config = OmegaConf.to_container(compose(translated), resolve=True)
    assert isinstance(config, dict)
    assert config["population"]["teachers"] == 4
    assert config["azr"]["problem_types"] == ["code_i", "code_o", "code_f"]
    assert config["azr"]["reward"]["n_samples"] == 8
    assert config["azr"]["generate_seed_dataset_only"] is ("seeding" in script)
    assert config["azr"]["chat"] == "raw"
    assert config["actor_rollout_ref"]["actor"]["optim"]["lr"] == 1e-6
    assert config["trainer"]["max_actor_ckpt_to_keep"] == 1
    assert len(notices) == len({notice.split()[0] for notice in notices})


AZR_KEYS = {
    "azr": """seed executor executor_max_workers executor_cleanup_frequency problem_types pred_data_mix_strategy
        gen_data_probabilities_strategy past_epoch_window seed_dataset error_seed_dataset code_f_seed_dataset
        output_seed_path output_error_seed_path output_code_f_seed_path pretrain_pred_steps ast_check
        execute_max_timeout random_print_max_programs train_propose generate_seed_dataset_only""",
    "azr.data_selection_strategy": """io_n update_iteration data_len seed_batch_factor content_max_length num_inputs
        valid_program_filter max_programs batched_estimate composite_function_n_min composite_function_n_max
        composite_chance composite_start_step max_programs_initial composite_chance_initial banned_words
        banned_keywords_for_errors_and_exceptions""",
    "azr.data_selection_strategy.composite_scheduler": """enabled update_num_programs_start num_programs_max
        update_num_programs_interval update_probability_start update_probability_interval update_probability_max
        update_probability_increment""",
    "azr.reward": "n_samples extract_code_block code_f_reward_type",
    "azr.reward.generation_reward_config": """format_reward reject_multiple_functions reject_test_input_in_code
        f_replace_location intrinsic_combine_method remove_after_return remove_comments remove_print
        use_original_code_as_ref generation_accuracy_convertion remove_input_from_snippet include_references
        code_location complexity_reward.enabled mean_edit_distance_reward.coef halstead_reward.max
        answer_diversity_reward.hierarchical f_input_answer_diversity_reward.hierarchical
        f_output_answer_diversity_reward.hierarchical""",
    "reward_fn": "extraction_type math_metric splitter boxed_retry",
}


@pytest.mark.parametrize("key", [f"{group}.{key}" for group, keys in AZR_KEYS.items() for key in keys.split()])
def test_every_key_of_azr_is_known_or_explained(key):
    translated, notices = translate([f"{key}=1"])
    assert translated == [f"{key}=1"] or notices[0].startswith(key)
    assert translate([f"+{key}=1"]) == (translated, notices)


def test_a_renamed_key_keeps_its_value_and_is_announced():
    translated, notices = translate(["trainer.val_generations_to_log_to_wandb=5", "ray_init.num_cpus=4"])
    assert translated == ["trainer.log_val_generations=5", "ray_kwargs.ray_init.num_cpus=4"]
    assert notices[0].startswith("trainer.val_generations_to_log_to_wandb is called trainer.log_val_generations")


def test_every_rule_leads_to_a_configuration_that_composes():
    samples = dict.fromkeys(MOVED, "True") | {
        "ray_init": "4",
        "trainer.profile_steps": "[1,2]",
        "trainer.val_generations_to_log_to_wandb": "0",
        "actor_rollout_ref.rollout.multi_turn.max_turns": "3",
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": "4",
        "actor_rollout_ref.rollout.mode": "sync",
        "actor_rollout_ref.rollout.load_format": "dummy_dtensor",
        "algorithm.adv_estimator": "reinforce_plus_plus",
        "data.train_files": "data/a.parquet",
        "data.val_files": "data/a.parquet",
        "data.val_batch_size": "1312",
        "trainer.test_freq": "10",
        "trainer.val_before_train": "True",
        "azr.executor": "sandboxfusion",
        "azr.ast_check": "False",
    }
    samples["ray_init.num_cpus"] = samples.pop("ray_init")
    samples["reward_model.max_length"] = samples.pop("reward_model")
    assert len(samples) == len(MOVED) + len(ADAPTED)
    results = [translate([f"{key}={value}"]) for key, value in samples.items()]
    assert [notice.split()[0] for _, (notice,) in results] == list(samples)
    compose([text for translated, _ in results for text in translated])


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("azr.reward.n_sample=4", "azr.reward.n_samples"),
        ("+trainer.total_epoch=4", "trainer.total_epochs"),
        ("++population.teacher=4", "population.teachers"),
        ("azr.rewards.code_f_reward_type=binary", "azr.reward.code_f_reward_type"),
        ("~trainer.savefreq", "trainer.save_freq"),
    ],
)
def test_a_key_that_exists_nowhere_is_an_error_that_names_the_nearest(wrong, right):
    with pytest.raises(UnknownKey, match=f"did you mean {right}"):
        translate([wrong])


def test_a_plus_is_dropped_where_the_key_exists_and_added_where_keys_are_free():
    translated, _ = translate(
        [
            "+azr.generate_seed_dataset_only=True",
            "++trainer.save_freq=5",
            "+data.apply_chat_template_kwargs.enable_thinking=False",
            "actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4",
        ]
    )
    assert translated == [
        "azr.generate_seed_dataset_only=True",
        "trainer.save_freq=5",
        "+data.apply_chat_template_kwargs.enable_thinking=False",
        "+actor_rollout_ref.rollout.engine_kwargs.vllm.swap_space=4",
    ]
    compose(translated)


def test_group_choices_and_hydra_settings_pass_unchanged():
    overrides = ["population=2t2s", "hydra.run.dir=out", "actor@actor_rollout_ref.actor=dp_actor"]
    assert translate(overrides) == (overrides, [])


def test_text_outside_the_grammar_is_refused():
    with pytest.raises(ValueError, match="is not an override; write key=value"):
        translate(["--population 4t4s"])
