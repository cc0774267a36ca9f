"""The patch for an upstream checkout, on a tree with files of the right length."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from azr_overrides.compat import translate
from azr_overrides.config import compose
from azr_overrides.handover import default_overrides
from patches.verl_surface import SURFACE

ROOT = Path(__file__).parents[1]
PATCH = ROOT / "patches" / "azr_population.patch"
APPLY = ROOT / "patches" / "apply.sh"
ENTRY = Path("absolute_zero_reasoner/main_azr_ppo.py")
CONFIG = Path("absolute_zero_reasoner/configs/azr_ppo_trainer.yaml")

# What matters of upstream's entry point: a docstring up to line 16, imports from line 17 on (those of an
# older verl fail today), 247 lines in all.
ENTRY_LINES = ['"""', *["an entry point"] * 14, '"""', "import json", "import a_module_of_an_older_verl"]
ENTRY_TEXT = "\n".join([*ENTRY_LINES, *["# a line"] * (247 - len(ENTRY_LINES))]) + "\n"
CONFIG_TEXT = """
data: {train_batch_size: 8, tokenizer: null}
actor_rollout_ref:
  actor: {clip_ratio_high: 0.28, optim: {lr: 1e-6}}
  rollout: {load_format: dummy_dtensor, temperature: 0.9}
trainer: {default_local_dir: 'checkpoints/${trainer.project_name}', logger: [console], somebodys_own: 3}
reward_fn: {extraction_type: answer_conditional, splitter: "Assistant:"}
azr:
  past_epoch_window: ${azr.data_selection_strategy.update_iteration}
  data_selection_strategy: {update_iteration: 2, banned_words: [os.path, "it's"], somebodys_own: 3}
  reward: {n_samples: 5}
"""


@pytest.fixture
def checkout(tmp_path):
    tree = tmp_path / "checkout"
    (tree / CONFIG).parent.mkdir(parents=True)
    (tree / ENTRY.parent / "__init__.py").touch()
    (tree / ENTRY).write_text(ENTRY_TEXT)
    (tree / CONFIG).write_text(CONFIG_TEXT)
    return tree


def run(*command, cwd, **options):
    return subprocess.run([str(word) for word in command], cwd=cwd, text=True, capture_output=True, **options)


def apply(*arguments):
    return run("bash", APPLY, *arguments, cwd=ROOT)


def entry_point(checkout, *arguments):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(checkout)))}
    return run(sys.executable, "-m", "absolute_zero_reasoner.main_azr_ppo", *arguments, cwd=checkout, env=environment)


def test_the_patch_holds_no_line_of_upstream():
    body = [line for line in PATCH.read_text().splitlines() if not line.startswith(("---", "+++", "@@"))]
    assert body and all(line.startswith("+") for line in body)


@pytest.mark.parametrize(
    ("forwards", "backwards"),
    [
        (("git", "apply", "--unidiff-zero"), ("git", "apply", "--unidiff-zero", "--reverse")),
        (("patch", "-p1", "-i"), ("patch", "-p1", "--reverse", "-i")),
    ],
)
def test_the_patch_applies_and_reverts_with_standard_tools(checkout, forwards, backwards):
    run(*forwards, PATCH, cwd=checkout, check=True)
    lines = (checkout / ENTRY).read_text().splitlines()
    assert lines[15] == '"""' and lines[16] == "import sys" and "import json" in lines
    run(*backwards, PATCH, cwd=checkout, check=True)
    assert (checkout / ENTRY).read_text() == ENTRY_TEXT
    assert not list(checkout.rglob("*.orig")) and not list(checkout.rglob("*.rej"))


def test_the_script_refuses_unknown_commits_unless_forced_and_can_be_repeated_and_reverted(checkout):
    refused = apply(checkout)
    assert refused.returncode == 1 and "--force applies it anyway" in refused.stderr
    assert (checkout / ENTRY).read_text() == ENTRY_TEXT
    for expected in ("applied", "already applied"):
        forced = apply("--force", checkout)
        assert forced.returncode == 0 and expected in forced.stdout
    assert (checkout / ENTRY).read_text().count("azr_overrides.handover") == 1
    for expected in ("taken back", "nothing to take back"):
        reverted = apply("--revert", checkout)
        assert reverted.returncode == 0 and expected in reverted.stdout
    assert (checkout / ENTRY).read_text() == ENTRY_TEXT


def test_a_file_of_another_layout_is_left_as_it_was(checkout):
    for text in ("import json\n" + ENTRY_TEXT, '"""' + "\n" * 30 + '"""\nimport json\n'):
        (checkout / ENTRY).write_text(text)
        refused = apply("--force", checkout)
        assert refused.returncode == 1 and "nothing was changed" in refused.stderr
        assert (checkout / ENTRY).read_text() == text


def test_other_folders_and_options_are_refused(tmp_path):
    for arguments, message in (
        ((tmp_path,), "not a checkout of Absolute Zero Reasoner"),
        ((), "which checkout?"),
        (("--fast", tmp_path), "unknown option --fast"),
    ):
        refused = apply(*arguments)
        assert refused.returncode == 1 and message in refused.stderr
    assert "--revert" in apply("--help").stdout


def test_upstreams_command_hands_over_before_it_imports_verl(checkout, tmp_path):
    apply("--force", checkout)
    model = tmp_path / "model"
    shutil.copytree(ROOT / "recipes/tiny_base/model", model)
    arguments = (
        f"actor_rollout_ref.model.path={model}",
        f"run_dir={tmp_path / 'run'}",
        "azr.sandbox.min_isolation=rlimits",
        "azr.data_selection_strategy.update_iteration=1",
    )
    handed = entry_point(checkout, *arguments, "population=4t4s", "trainer.wandb_run_id=null", "--dry-run")
    assert handed.returncode == 0, handed.stderr
    assert "handing over" in handed.stderr and "note: trainer.wandb_run_id" in handed.stderr
    assert "  teachers: 4\n" in handed.stdout and "    n_samples: 5\n" in handed.stdout
    unknown = entry_point(checkout, *arguments, "+population=4t4s", "azr.reward.n_sample=3")
    assert unknown.returncode == 2 and "did you mean azr.reward.n_samples" in unknown.stderr
    before = entry_point(checkout, *arguments)
    assert before.returncode == 1 and "No module named 'a_module_of_an_older_verl'" in before.stderr


def test_upstreams_defaults_become_ours_and_the_command_line_wins(checkout):
    defaults = default_overrides(checkout / CONFIG)
    translated, notices = translate([*defaults, "azr.reward.n_samples=3"])
    config = compose(translated)
    assert notices == []
    assert config.azr.reward.n_samples == 3
    assert config.azr.past_epoch_window == 2
    assert config.azr.data_selection_strategy.banned_words == ["os.path", "it's"]
    assert config.reward_fn.splitter == "Assistant:"
    assert config.actor_rollout_ref.actor.clip_ratio_high == 0.28
    assert config.actor_rollout_ref.rollout.temperature == 0.9
    assert config.actor_rollout_ref.rollout.load_format == "safetensors"
    assert not any("somebodys_own" in text or "default_local_dir" in text for text in defaults)


def test_the_surface_is_shown_without_a_runs_environment():
    environment = {name: value for name, value in os.environ.items() if not name.startswith("VERL_")}
    command = [sys.executable, "-m", "patches.verl_surface"]
    shown = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    lines = [line for line in shown.stdout.splitlines() if line.startswith("ok  ")]
    assert len(lines) == len(SURFACE)
