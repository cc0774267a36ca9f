import json
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import azr_overrides.prepare as prepare_module
from azr_overrides.config import compose
from azr_overrides.prepare import (
    _TRACKER_PACKAGES,
    POPULATION_ESTIMATOR,
    SINGLE_ESTIMATOR,
    ConfigError,
    environment,
    prepare,
)

MODEL = Path(__file__).parents[1] / "recipes" / "tiny_base" / "model"


def configured(tmp_path, *overrides):
    base = ["device=cpu", f"actor_rollout_ref.model.path={MODEL}", f"run_dir={tmp_path}/run"]
    return compose([*base, *overrides])


def test_a_population_is_completed(tmp_path):
    config = configured(tmp_path, "population=2t2s")
    sizes = prepare(config)
    assert config.algorithm.adv_estimator == POPULATION_ESTIMATOR
    assert config.actor_rollout_ref.model.lora.population.adapter_ids == [1, 2, 3, 4]
    assert sizes.solver_tasks == 0
    assert Path(config.trainer.default_local_dir).is_absolute()


def test_the_baseline_is_completed(tmp_path):
    config = configured(tmp_path)
    assert prepare(config).solver_tasks > 0
    assert config.algorithm.adv_estimator == SINGLE_ESTIMATOR


def test_any_numbers_of_teachers_and_students_can_be_given(tmp_path):
    config = configured(tmp_path, "population=1t1s", "population.teachers=3", "population.students=5")
    prepare(config)
    assert len(config.actor_rollout_ref.model.lora.population.seats) == 8


ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"


@pytest.mark.parametrize(("installed", "chosen"), [(True, "flash_attention_2"), (False, "sdpa")])
def test_a_gpu_attends_with_what_is_installed(tmp_path, monkeypatch, installed, chosen):
    find = prepare_module.importlib.util.find_spec
    found = lambda name: object() if installed else None  # noqa: E731
    monkeypatch.setattr(
        prepare_module.importlib.util, "find_spec", lambda name: found(name) if name == "flash_attn" else find(name)
    )
    config = configured(tmp_path, "device=gpu")
    prepare(config)
    assert OmegaConf.select(config, ATTENTION) == chosen
    asked = configured(tmp_path, "device=gpu", f"{ATTENTION}=flash_attention_2")
    if installed:
        prepare(asked)
    else:
        with pytest.raises(ConfigError, match="needs the package flash-attn"):
            prepare(asked)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["actor_rollout_ref.model.path=/nowhere/model"], "there is no such folder"),
        (["population=2t2s", "population.students=0"], "at least one teacher and one student"),
        (["azr.seed_dataset=/nowhere/seeds.jsonl"], r"azr\.seed_dataset=/nowhere/seeds\.jsonl"),
        (["actor_rollout_ref.rollout.name=sglang"], "members are served by vLLM"),
        (["actor_rollout_ref.rollout.n=4"], r"population\.attempts"),
        (["actor_rollout_ref.actor.strategy=fsdp"], "only fsdp2"),
        (["actor_rollout_ref.rollout.load_format=dummy"], "load the base itself"),
        (["trainer.test_freq=10"], "python -m eval"),
        (["trainer.resume_mode=maybe"], "choose auto, disable or resume_path"),
        (["trainer.resume_mode=resume_path", "trainer.resume_from_path=/nowhere"], "is not a checkpoint"),
        (["actor_rollout_ref.model.lora_rank=0"], "at least 1"),
        (["population.budget=most"], r"population\.budget"),
        (["population=2t2s", "population.matchmaking.name=pfps"], "unknown matchmaker 'pfps'; choose one of"),
        (["population=2t2s", "+population.rating.params.sigam=1"], "'trueskill' does not take these parameters"),
        (["population=2t2s", "+population.evolution.mutations.spectrum={}"], "unknown operator 'spectrum'"),
        (
            ["population=2t2s", "population.evolution.selection_params.fraction=2"],
            "fraction must lie between",
        ),
    ],
)
def test_what_cannot_run_is_refused_by_name(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        prepare(configured(tmp_path, *overrides))


def test_a_missing_model_path_says_what_to_pass(tmp_path):
    config = compose(["device=cpu", f"run_dir={tmp_path}/run"])
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.model\.path is not set"):
        prepare(config)


def test_a_folder_without_weights_is_no_model(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(ConfigError, match="no weights"):
        prepare(configured(tmp_path, f"actor_rollout_ref.model.path={tmp_path}/model"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_run_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(OSError, match="set run_dir"):
        prepare(configured(tmp_path, "population=2t2s"))


def checkpoint(tmp_path, seats, base=str(MODEL), rank=8):
    folder = tmp_path / "run" / "checkpoints" / "step_3"
    folder.mkdir(parents=True)
    state = {"members": [{"seat": seat, "adapter": f"adapters/{seat}"} for seat in seats], "base_model": base}
    (folder / "population.json").write_text(json.dumps(state))
    for seat in seats:
        (folder / "adapters" / seat).mkdir(parents=True)
        (folder / "adapters" / seat / "adapter_config.json").write_text(json.dumps({"r": rank, "lora_alpha": 2 * rank}))
    return folder


def test_resuming_with_another_population_is_refused_before_anything_starts(tmp_path):
    checkpoint(tmp_path, ["teacher1", "student1"])
    with pytest.raises(ConfigError, match=r"holds 2 members \(teacher1, student1\)"):
        prepare(configured(tmp_path, "population=2t2s"))


def test_resuming_on_another_base_is_refused(tmp_path):
    checkpoint(tmp_path, ["teacher1", "student1"], base="Qwen/Qwen2.5-Coder-7B")
    with pytest.raises(ConfigError, match="adapters fit only the base"):
        prepare(configured(tmp_path, "population=1t1s"))


def test_resuming_with_another_rank_is_refused(tmp_path):
    checkpoint(tmp_path, ["teacher1", "student1"], rank=8)
    prepare(configured(tmp_path, "population=1t1s", *lora(8, 16)))
    for rank, alpha in ((16, 16), (8, 32)):
        with pytest.raises(ConfigError, match="holds adapters of rank 8 and alpha 16"):
            prepare(configured(tmp_path, "population=1t1s", *lora(rank, alpha)))


def lora(rank, alpha):
    return f"actor_rollout_ref.model.lora_rank={rank}", f"actor_rollout_ref.model.lora_alpha={alpha}"


def test_going_back_before_the_newest_checkpoint_is_refused(tmp_path):
    folder = checkpoint(tmp_path, ["teacher1", "student1"], rank=8)
    same = ["population=1t1s", *lora(8, 16)]
    prepare(configured(tmp_path, *same, "trainer.resume_mode=resume_path", f"trainer.resume_from_path={folder}"))
    with pytest.raises(ConfigError, match=r"would start after step 0, but .*step_3 is later"):
        prepare(configured(tmp_path, *same, "trainer.resume_mode=disable"))


def test_a_tracker_without_its_package_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(_TRACKER_PACKAGES, "wandb", "a_package_that_nobody_has")
    prepare(configured(tmp_path, "population=1t1s"))
    with pytest.raises(ConfigError, match=r"trainer\.logger has wandb"):
        prepare(configured(tmp_path, "population=1t1s", "trainer.logger=[console,wandb]"))


def test_cpu_runs_get_the_cpu_platform_and_gpu_runs_do_not(tmp_path):
    cpu = environment(configured(tmp_path))
    assert cpu["VERL_PLATFORM"] == "cpu" and cpu["HF_HUB_OFFLINE"] == "1"
    gpu = environment(compose(["actor_rollout_ref.model.path=org/model"]))
    assert "VERL_PLATFORM" not in gpu and "HF_HUB_OFFLINE" not in gpu
    assert gpu["VERL_ENGINE_VENDOR"] == "populora"
