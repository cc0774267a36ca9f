"""The whole evaluation on the tiny base with real vLLM: population, kill, resume, grade, table."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from eval.members import EvalMember, adapter_hash, baseline_member, check_names, named_adapter, population_members
from eval.prompts.choose import TEMPLATES, choose_template
from eval.prompts.template import render
from eval.store import Store, request_key
from eval.types import ModelKind, Problem, Profile, Sampling, UsageError
from tests.eval_support import (
    BENCHMARK_DATA,
    MATH_SETS,
    ROOT,
    TINY_BASE,
    humaneval_rows,
    lcb_rows,
    make_adapter,
    make_population,
    needs_benchmark_data,
    write_jsonl,
)

MEMBERS = ["teacher1", "student1", "student2"]
MAX_TOKENS = 8


@pytest.fixture(scope="module")
def population(tmp_path_factory) -> Path:
    return make_population(tmp_path_factory.mktemp("run"), MEMBERS)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    """All ten benchmarks: real data where it is at hand, problems of our own in the published formats elsewhere."""
    folder = tmp_path_factory.mktemp("data")
    for name in (*MATH_SETS, "mbppplus"):
        shutil.copy(BENCHMARK_DATA / f"{name}.jsonl", folder / f"{name}.jsonl")
    write_jsonl(folder / "livecodebench_test.jsonl", lcb_rows())
    write_jsonl(folder / "humanevalplus.jsonl", humaneval_rows())
    return folder


def eval_command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "eval", *map(str, arguments)]


def run_command(population: Path, data_dir: Path, out: Path) -> list[str]:
    return eval_command(
        "run", "--base", TINY_BASE, "--population", population, "--benchmarks", "all", "--data-dir", data_dir,
        "--unpinned-data", "--limit", 1, "--max-tokens", MAX_TOKENS, "--dtype", "float32", "--max-num-seqs", 4,
        "-o", out,
    )  # fmt: skip


def completions_in(out: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in (out / "completions").glob("*.jsonl"))


def kill_half_way(command: list[str], out: Path, after: int) -> None:
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 600
    while completions_in(out) < after:
        assert process.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "no completions appeared"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def check(command: list[str]) -> str:
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stderr


@needs_benchmark_data
@pytest.mark.slow
@pytest.mark.e2e
@pytest.mark.timeout(1800)
def test_a_killed_run_resumes_and_ends_in_the_same_table(population, data_dir, tmp_path):
    straight, broken = tmp_path / "eval", tmp_path / "again" / "eval"
    kill_half_way(run_command(population, data_dir, broken), broken, after=6)
    known = completions_in(broken)
    assert 6 <= known < 40
    message = check(run_command(population, data_dir, broken))
    assert f"40 completions wanted, {known} of this shard's 40 known" in message
    check(run_command(population, data_dir, straight))
    assert Store(broken).read_completions() == Store(straight).read_completions()

    for out in (straight, broken):
        check(eval_command("grade", "-o", out, "--workers", 1))
        check(eval_command("table", out))
    for name in ("table.md", "table.csv", "table.json", "results.json"):
        assert (straight / name).read_bytes() == (broken / name).read_bytes(), name
    table = json.loads((straight / "table.json").read_text())
    assert len(table["common_benchmarks"]) == 10
    labels = [row["label"] for row in table["rows"]]
    assert labels[:2] == ["base", "population mean (3)"] and labels[-3:] == MEMBERS
    results = json.loads((straight / "results.json").read_text())
    assert results["isolation"] in ("full", "seccomp")
    assert sum(record["graded_completions"] for record in results["results"]) == 40
    again = check(eval_command("grade", "-o", straight, "--workers", 1))
    assert again.startswith("0 verdicts added")

    assert_equal_to_transformers(Store(straight), population)


def assert_equal_to_transformers(store: Store, population: Path) -> None:
    """Each member's completions in the mixed stream are those of plain transformers with that adapter alone."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TINY_BASE)
    prompts = {}
    for path in (store.directory / "prompts").glob("*.jsonl"):
        for row in map(json.loads, path.read_text().splitlines()):
            prompts[row["benchmark"], row["problem_id"], row["template"]] = row["prompt"]
    completions = store.read_completions()
    planned = sorted(store.read_plan(), key=lambda entry: completions[entry.key].prompt_tokens)
    texts = set()
    for name in ("base", *MEMBERS):
        model: Any = AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32)
        if name != "base":
            model = PeftModel.from_pretrained(model, str(population / "checkpoints" / "step_3" / "adapters" / name))
        mine = [entry for entry in planned if entry.member == name][:5]
        for entry in mine:
            completion = completions[entry.key]
            prompt = prompts[entry.benchmark, entry.problem_id, entry.template]
            inputs = tokenizer(prompt, return_tensors="pt")
            output = model.generate(**inputs, max_new_tokens=MAX_TOKENS, do_sample=False)
            alone = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
            if completion.finish_reason == "length":
                assert completion.text == alone, (name, entry.benchmark)
            else:
                assert alone.startswith(completion.text), (name, entry.benchmark)
            texts.add(completion.text)
    assert len(texts) >= 12, "adapters hardly differ: the comparison shows nothing"


def test_members_of_a_population_are_read_from_its_newest_checkpoint(population, tmp_path):
    (population / "checkpoints" / "step_9").mkdir(exist_ok=True)  # unfinished: no population.json
    members = population_members(population, ModelKind.AZR)
    assert [(member.name, member.role) for member in members] == [
        ("teacher1", "teacher"), ("student1", "student"), ("student2", "student")
    ]  # fmt: skip
    assert members[0].rating == (26.0, 6.0) and members[0].rank == 4
    assert len({member.adapter_sha256 for member in members}) == 3
    with pytest.raises(UsageError, match="3 members; a baseline is one adapter"):
        baseline_member(population, ModelKind.AZR)
    with pytest.raises(UsageError, match="neither population.json"):
        population_members(tmp_path, ModelKind.AZR)


def test_an_adapter_is_identified_by_what_it_computes(tmp_path):
    folder = make_adapter(tmp_path / "a", seed=1)
    sha256, rank = adapter_hash(folder)
    copy = tmp_path / "b"
    shutil.copytree(folder, copy)
    assert adapter_hash(copy) == (sha256, rank) == (sha256, 4)
    config = json.loads((copy / "adapter_config.json").read_text())
    (copy / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": 16}))
    assert adapter_hash(copy)[0] != sha256
    assert baseline_member(folder, ModelKind.AZR).name == "baseline"
    (copy / "adapter_model.safetensors").unlink()
    with pytest.raises(UsageError, match="adapter_model.safetensors is missing"):
        named_adapter(f"x={copy}", ModelKind.AZR)


def test_names_must_be_unique_and_arguments_well_formed(tmp_path):
    twice = [EvalMember("a", "population", ModelKind.AZR)] * 2
    with pytest.raises(UsageError, match="not unique: a"):
        check_names(twice)
    with pytest.raises(UsageError, match="expected NAME=DIR"):
        named_adapter("only-a-name", ModelKind.AZR)


def test_the_cache_key_changes_with_everything_that_changes_a_completion():
    sampling = Sampling(0.0, 1.0, 100, ("</s>",), 0)
    key = request_key("base", "adapter", "prompt", sampling, 0, "vllm 1 float32")
    others = [
        request_key("other", "adapter", "prompt", sampling, 0, "vllm 1 float32"),
        request_key("base", "other", "prompt", sampling, 0, "vllm 1 float32"),
        request_key("base", "adapter", "other", sampling, 0, "vllm 1 float32"),
        request_key("base", "adapter", "prompt", Sampling(0.0, 1.0, 99, ("</s>",), 0), 0, "vllm 1 float32"),
        request_key("base", "adapter", "prompt", sampling, 1, "vllm 1 float32"),
        request_key("base", "adapter", "prompt", sampling, 0, "vllm 2 float32"),
    ]
    assert len({key, *others}) == 7
    assert key == request_key("base", "adapter", "prompt", sampling, 0, "vllm 1 float32")


class PlainTokenizer:
    chat_template = None


class ChatTokenizer:
    chat_template = "yes"

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize and add_generation_prompt
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>"


def test_every_template_renders_its_question_and_leaves_no_placeholder():
    math = Problem("math500", "1", "What is {1, 2} minus {2}?")
    lcb = [
        Problem("livecodebench", "1", "Add.", payload={"starter_code": code, "function": ""})
        for code in ("", "def f(): ")
    ]
    for template in TEMPLATES.values():
        tokenizer = ChatTokenizer() if template.chat else PlainTokenizer()
        for problem in [math] if not template.stdin_format else lcb:
            prompt, special = render(template, problem, tokenizer)
            assert problem.question in prompt and special != template.chat
            assert not any(mark in prompt for mark in ("{question}", "{format}", "{starter}"))
            assert prompt.endswith(template.prefill)


def test_a_chat_template_is_asked_for_where_there_is_none():
    from eval.prompts.fixed import MATH_CHAT

    with pytest.raises(UsageError, match="tokenizer has none"):
        render(MATH_CHAT, Problem("math500", "1", "q"), PlainTokenizer())


def test_profiles_choose_their_protocols():
    from eval.data.registry import BENCHMARKS

    def chosen(name: str, kind: ModelKind, profile: Profile, chat: bool = False, **overrides: str) -> str:
        return choose_template(BENCHMARKS[name], kind, profile, chat, overrides).name

    assert chosen("math500", ModelKind.AZR, Profile.PARITY) == "azr"
    assert chosen("math500", ModelKind.BASE, Profile.PARITY) == "qwen-boxed"
    assert chosen("mbpp_plus", ModelKind.AZR, Profile.PARITY) == "evalplus-mbpp"
    assert chosen("mbpp_plus", ModelKind.AZR, Profile.PARITY, chat=True) == "evalplus-chat"
    assert chosen("livecodebench", ModelKind.AZR, Profile.PARITY) == "lcb-azr-published"
    assert chosen("math500", ModelKind.AZR, Profile.FIXED) == "math-azr"
    assert chosen("aime24", ModelKind.AZR, Profile.PARITY, math="azr_boxed") == "azr_boxed"
    with pytest.raises(UsageError, match="unknown prompt template"):
        chosen("aime24", ModelKind.AZR, Profile.PARITY, math="nope")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--base", "b", "--samples", "4", "-o", "x"], "needs --temperature above 0"),
        (["run", "--base", "b", "--benchmarks", "mmlu", "-o", "x"], "unknown benchmark"),
        (["run", "--base", "b", "--shard", "3/2", "-o", "x"], "expected I/N"),
        (["run", "--base", "b", "--population", "nowhere", "-o", "x"], "nowhere holds neither"),
        (["run", "--base", "b", "--benchmarks", "aime24", "--data-dir", "nowhere", "-o", "x"], "fetch-data"),
        (["grade", "-o", "nowhere"], "holds no evaluation"),
        (["table", "nowhere"], "holds no evaluation"),
    ],
)
def test_mistakes_get_a_clear_error_before_any_work(arguments, message, capsys, tmp_path, monkeypatch):
    from eval.__main__ import main

    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_shard_is_named_by_hand_or_by_slurm(monkeypatch):
    from eval.__main__ import _shard

    assert _shard(None) == (0, 1) and _shard("2/4") == (2, 4)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "3")
    assert _shard("slurm") == (1, 3)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(UsageError, match="inside srun only"):
        _shard("slurm")


def test_the_recipe_starts_one_engine_on_every_gpu_of_every_node():
    environment = os.environ | {
        "GPUS": "2",
        "SLURM_NTASKS": "2",
        "SLURM_PROCID": "1",
        "BASE": "m",
        "OUT": "o",
        "PYTHON": "py",
    }
    environment.pop("SLURM_SUBMIT_DIR", None)
    command = ["bash", str(ROOT / "recipes" / "eval_population.sh"), "runs/x", "--limit", "5", "--dry-run"]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    first, second, grade, table = output.strip().splitlines()
    assert first == (
        "CUDA_VISIBLE_DEVICES=0 py -m eval run --base m --population runs/x --benchmarks all --profile parity -o o "
        "--limit 5 --shard 2/4"
    )
    assert second.endswith("--shard 3/4") and second.startswith("CUDA_VISIBLE_DEVICES=1")
    assert (grade.strip(), table.strip()) == ("py -m eval grade -o o", "py -m eval table o")
