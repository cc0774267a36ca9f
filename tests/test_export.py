"""Exported members load elsewhere and compute what the member computed."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from recipes.tiny_base import __path__ as _tiny_base
from verl_populora import export
from verl_populora.adapters.peft_io import write_peft
from verl_populora.adapters.weights import AdapterWeights, LoraFactors

BASE = f"{next(iter(_tiny_base))}/model"
MODULE = "model.layers.0.self_attn.q_proj"


def record(seat, role, number, generation=0, birth_step=0):
    name = seat if generation == 0 else f"{seat}-g{generation}"
    founder = {"operator": "init", "parents": [], "parent_versions": [], "params": {}, "seed": 0}
    child = {"operator": "dare", "parents": ["student1"], "parent_versions": [3], "params": {"drop": 0.5}, "seed": 7}
    return {
        "seat": seat, "role": role, "adapter_id": number, "generation": generation, "birth_step": birth_step,
        "version": 4, "lineage": child if generation else founder, "name": name, "adapter": f"adapters/{name}",
    }  # fmt: skip


def make_run(path, members, fitness):
    from transformers import AutoModelForCausalLM

    weight = AutoModelForCausalLM.from_pretrained(BASE, dtype="auto").get_parameter(f"{MODULE}.weight")
    generator = torch.Generator().manual_seed(0)
    folder = path / "checkpoints" / "step_4"
    for member in members:
        a = torch.randn(8, weight.shape[1], generator=generator)
        b = torch.randn(weight.shape[0], 8, generator=generator)
        write_peft(folder / member["adapter"], AdapterWeights({MODULE: LoraFactors(a, b, 2.0)}, 8, 16.0), BASE)
    (folder / "population.json").write_text(json.dumps({"step": 4, "base_model": BASE, "members": members}))
    values = {f"member/{seat}/fitness": value for seat, value in fitness.items()}
    (path / "metrics.jsonl").write_text(json.dumps({"step": 4, **values}) + "\n")
    return path


@pytest.fixture
def run(tmp_path):
    members = [
        record("teacher1", "teacher", 1), record("student1", "student", 2),
        record("student2", "student", 3, 1, 2), record("student3", "student", 4, 1, 4),
    ]  # fmt: skip
    # student3 was born in this step: the value of its seat is its predecessor's, however high.
    return make_run(tmp_path / "run", members, {"teacher1": 30, "student1": 10, "student2": 20, "student3": 99})


def logits(model):
    with torch.no_grad():
        return model(torch.arange(1, 9)[None]).logits


def test_best_is_the_fittest_of_its_role_and_loads_in_peft(run, capsys):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    assert export.main([str(run)]) == 0
    folder = run / "export" / "step_4-student2-g1-peft" / "student2-g1"
    assert f"{folder}  (student, fitness 20)" in capsys.readouterr().out
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    before = logits(base)
    model = PeftModel.from_pretrained(base, str(folder))
    assert not torch.allclose(before, logits(model), atol=1e-2)
    card = (folder / "README.md").read_text()
    assert "dare" in card and "student1 (version 3)" in card and "| fitness | 20 |" in card


def test_a_merged_model_is_the_base_plus_the_update_rounded_once(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert export.main([str(run), "--member", "student1", "--format", "merged", "--output", str(run / "m")]) == 0
    folder = run / "m" / "student1"
    base = AutoModelForCausalLM.from_pretrained(BASE, dtype="auto")
    merged = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    AutoTokenizer.from_pretrained(folder)
    factors = load_file(run / "checkpoints/step_4/adapters/student1/adapter_model.safetensors")
    a, b = (factors[f"base_model.model.{MODULE}.lora_{x}.weight"] for x in "AB")
    expected = dict(base.state_dict())
    weight = expected[f"{MODULE}.weight"]
    expected[f"{MODULE}.weight"] = (weight.float() + 2.0 * b @ a).to(weight.dtype)
    torch.testing.assert_close(dict(merged.state_dict()), expected, rtol=0, atol=0)


def test_vllm_export_names_every_member_and_a_spare_slot(run):
    assert export.main([str(run), "--member", "all", "--role", "student", "--format", "vllm"]) == 0
    script = (run / "export" / "step_4-all-vllm" / "serve.sh").read_text()
    assert "--max-loras 4" in script and "--max-lora-rank 8" in script and "teacher1" not in script
    for name in ("student1", "student2-g1", "student3-g1"):
        assert f'{name}="$here"/{name}' in script


def test_a_single_agent_is_its_own_best(tmp_path):
    run = make_run(tmp_path / "run", [record("agent1", "agent", 1)], {})
    assert export.main([str(run)]) == 0
    assert (run / "export" / "step_4-agent1-peft" / "agent1" / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--member", "student2"], "did you mean student2-g1?"),
        (["--role", "agent"], "holds no agent"),
        (["--step", "3"], "no checkpoint of step 3; it has 4"),
        (["--output", "."], "exists; remove it"),
    ],
)
def test_errors_say_what_to_do(run, capsys, arguments, message):
    assert export.main([str(run), *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not (run / "export").exists()


def test_a_run_without_checkpoint_and_no_run(tmp_path, capsys):
    (tmp_path / "config.yaml").write_text("{}")
    assert export.main([str(tmp_path)]) == 1
    assert export.main([str(tmp_path / "missing")]) == 1
    error = capsys.readouterr().err
    assert "no complete checkpoint yet" in error and "is not a directory" in error


PROMPT, NEW_TOKENS = "def f(x):", 8


def complete(port, model):
    body = {"model": model, "prompt": PROMPT, "max_tokens": NEW_TOKENS, "temperature": 0, "return_token_ids": True}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def complete_with_peft(folder, names):
    """What each exported adapter, and the base, completes greedily in float32."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = AutoModelForCausalLM.from_pretrained(BASE, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(BASE)(PROMPT, return_tensors="pt")
    length = prompt["input_ids"].shape[1]

    def tokens(model):
        return model.generate(**prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0, length:].tolist()

    found = {BASE: tokens(base)}
    model = PeftModel.from_pretrained(base, str(folder / names[0]), adapter_name=names[0])
    for name in names:
        if name != names[0]:
            model.load_adapter(str(folder / name), adapter_name=name)
        model.set_adapter(name)
        found[name] = tokens(model)
    return found


@pytest.mark.slow
@pytest.mark.e2e
def test_vllm_serves_the_exported_adapters(run, tmp_path):
    pytest.importorskip("vllm")
    out = tmp_path / "out"
    assert export.main([str(run), "--member", "all", "--format", "vllm", "--output", str(out)]) == 0
    expected = complete_with_peft(out, ["student1", "student2-g1", "student3-g1", "teacher1"])
    assert len(set(map(tuple, expected.values()))) == len(expected), expected
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
        "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    options = ["--port", str(port), "--host", "127.0.0.1", "--enforce-eager", "--dtype", "float32"]
    options += ["--max-model-len", "64", "--max-num-seqs", "8"]
    log = tmp_path / "serve.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            ["bash", str(out / "serve.sh"), *options],
            env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 300
        while True:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-3000:]
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                time.sleep(1)
        assert {name: complete(port, name) for name in expected} == expected
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
