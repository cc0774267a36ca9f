"""The seeding stage: with a scripted model and the real sandbox, and with the tiny base on vLLM."""

import asyncio
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from azr_overrides.config import compose
from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.seed_stage import MAX_IDLE_BATCHES, SeedingStalled, SeedStage, StageRules, generate_seeds
from azr_overrides.seeding import identity_task
from azr_overrides.seeds import read_seeds, write_seeds
from azr_overrides.tasks.parsing import ParseOptions
from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import TaskKind
from azr_overrides.tasks.verification import Verifier

ROOT = Path(__file__).parents[1]
TINY = ROOT / "recipes" / "tiny_base"


class ScriptedModel:
    """Writes a new valid task in every second completion; keeps what it was asked."""

    def __init__(self):
        self.asked = []
        self._numbers = itertools.count()

    def generate(self, conversations):
        self.asked += [messages[0]["content"] for messages in conversations]
        return [self._answer(messages[0]["content"]) for messages in conversations]

    def _answer(self, prompt):
        number = next(self._numbers)
        if number % 2:
            return "no idea"
        if "```message" in prompt:
            return f"```input\n{number}\n```\n```input\n{number + 1}\n```\n```message\nhint {number}\n```"
        return f"```python\ndef f(x):\n    return x + {number}\n```\n```input\n1\n```"


def rules(target):
    return StageRules(
        PromptSet.load("builtin"),
        ParseOptions(num_inputs=2),
        target,
        batch_size=4,
        references=3,
        banned_words=("random",),
    )


def run(action, model=None, target=7):
    """``action`` on a stage with a running sandbox; returns its result and the lines that were reported."""
    lines = []

    async def go():
        async with Sandbox(SandboxConfig(min_isolation="rlimits")) as sandbox:
            generate = (model or ScriptedModel()).generate
            stage = SeedStage(rules(target), generate, Verifier(sandbox), np.random.default_rng(1), lines.append)
            return await action(stage)

    return asyncio.run(go()), lines


def test_the_pool_grows_to_its_target_from_the_identity_task(tmp_path):
    model = ScriptedModel()
    tasks, lines = run(lambda stage: stage.collect([TaskKind.CODE_O, TaskKind.CODE_I]), model)
    assert len(tasks) == 7 and tasks[0] == identity_task(TaskKind.CODE_O)
    assert [task.outputs[0] for task in tasks[1:]] == ["1", "3", "5", "7", "9", "11"]
    assert lines[-1] == "code_o seeds: 7 of 7 after 3 batches"
    assert "predict the output" in model.asked[0] and "find a suitable input" in model.asked[4]
    assert model.asked[0].count("<snippet_") == 1 and model.asked[-1].count("<snippet_") == 3
    write_seeds(tmp_path / "io.jsonl", tasks)
    assert len(read_seeds(tmp_path / "io.jsonl", TaskKind.CODE_I)) == 7


def test_every_program_gets_inputs_before_any_gets_them_twice():
    model = ScriptedModel()
    programs = [identity_task(TaskKind.CODE_O)]
    tasks, _ = run(lambda stage: stage.collect_induction(programs), model, target=4)
    assert [task.kind for task in tasks] == [TaskKind.CODE_F] * 4
    assert [task.message for task in tasks[1:]] == ["hint 0", "hint 2", "hint 4"]
    assert all(task.program == programs[0].program for task in tasks)


def test_a_model_that_writes_nothing_valid_ends_the_stage_with_the_reasons():
    class Silent(ScriptedModel):
        def _answer(self, prompt):
            return "no idea"

    with pytest.raises(SeedingStalled, match=f"{MAX_IDLE_BATCHES} batches in a row.*80 no_program"):
        run(lambda stage: stage.collect([TaskKind.CODE_O]), Silent())


def test_a_missing_output_path_is_told_before_the_model_is_loaded():
    config = compose(["actor_rollout_ref.model.path=nowhere", "azr.output_seed_path=io.jsonl"])
    with pytest.raises(ValueError, match="azr.output_code_f_seed_path is not set"):
        generate_seeds(config)


@pytest.mark.slow
@pytest.mark.e2e
def test_the_tiny_base_makes_its_own_seed_files(tmp_path):
    path = tmp_path / "io.jsonl"
    overrides = [
        "device=cpu",
        f"actor_rollout_ref.model.path={TINY / 'model'}",
        "actor_rollout_ref.rollout.max_model_len=448",
        "data.max_prompt_length=256",
        "data.max_response_length=192",
        "data.train_batch_size=4",
        f"azr.prompt_source={TINY / 'prompts.yaml'}",
        "azr.data_selection_strategy.io_n=1",
        "azr.problem_types=[code_o,code_i]",
        "azr.sandbox.min_isolation=rlimits",
        f"azr.output_seed_path={path}",
    ]
    # Its own process: vLLM keeps what it initialised.
    program = (
        "import sys; from azr_overrides.config import compose; from azr_overrides.seed_stage import generate_seeds; "
        "print(generate_seeds(compose(sys.argv[1:])))"
    )
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    command = [sys.executable, "-c", program, *overrides]
    done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "code_o seeds: 16 of 16" in done.stdout
    assert len(read_seeds(path, TaskKind.CODE_O)) == 16
    assert len({json.loads(line)["snippet"] for line in path.read_text().splitlines()}) > 8
