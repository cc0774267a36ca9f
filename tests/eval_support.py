"""Small real inputs for the tests of ``eval``: adapters, a population on disk, data files in the published formats."""

import base64
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY_BASE = ROOT / "recipes" / "tiny_base" / "model"
SHARED = Path(os.environ.get("POPULORA_SHARED", ROOT.parent / "shared"))
BENCHMARK_DATA = Path(os.environ.get("POPULORA_EVAL_DATA", SHARED / "eval" / "data"))
MATH_SETS = ("aime24", "aime25", "amc23", "math500", "minerva_math", "gsm8k", "olympiadbench")

needs_benchmark_data = pytest.mark.skipif(
    not (BENCHMARK_DATA / "math500.jsonl").exists(), reason=f"no benchmark data in {BENCHMARK_DATA}"
)


def make_adapter(folder: Path, seed: int, scale: float = 0.3) -> Path:
    """A LoRA adapter of the tiny base whose weights are large enough to change what it writes."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(TINY_BASE, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, scale)
    model.save_pretrained(str(folder))
    return folder


def make_population(run: Path, names: list[str], step: int = 3) -> Path:
    """A run directory with one checkpoint, as ``docs/run-directory.md`` describes it."""
    checkpoint = run / "checkpoints" / f"step_{step}"
    members = []
    for index, name in enumerate(names, 1):
        make_adapter(checkpoint / "adapters" / name, seed=index)
        members.append(
            {
                "seat": name,
                "name": name,
                "role": "teacher" if name.startswith("teacher") else "student",
                "adapter_id": index,
                "generation": 0,
                "version": 1,
                "rating": [25.0 + index, 6.0],
                "lineage": {"operator": "init", "parents": []},
                "adapter": f"adapters/{name}",
            }
        )
    record = {"step": step, "members": members, "base_model": str(TINY_BASE)}
    (checkpoint / "population.json").write_text(json.dumps(record))
    return run


def packed_tests(tests: list[dict]) -> str:
    """Private tests as LiveCodeBench publishes them: JSON, pickled, deflated, in base64."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def lcb_rows() -> list[dict]:
    """One problem over standard input, one call-based with ``class Solution``."""
    stdin_tests = [
        {"input": "3\n1 2 3\n", "output": "6\n", "testtype": "stdin"},
        {"input": "1\n-4\n", "output": "-4", "testtype": "stdin"},
    ]
    call_tests = [
        {"input": '[3, 1, 2]\n"up"', "output": "[1, 2, 3]", "testtype": "functional"},
        {"input": '[3, 1, 2]\n"down"', "output": "[3, 2, 1]", "testtype": "functional"},
    ]
    common = {"platform": "own", "contest_id": "own", "contest_date": "2024-01-01T00:00:00", "difficulty": "easy"}
    return [
        common
        | {
            "question_title": "sum",
            "question_id": "own_sum",
            "question_content": "Read n, then n numbers. Print their sum.",
            "starter_code": "",
            "public_test_cases": json.dumps(stdin_tests[:1]),
            "private_test_cases": packed_tests(stdin_tests[1:]),
            "metadata": "{}",
        },
        common
        | {
            "question_title": "order",
            "question_id": "own_order",
            "question_content": "Sort the numbers up or down.",
            "starter_code": "class Solution:\n    def order(self, numbers: List[int], way: str) -> List[int]:\n",
            "public_test_cases": json.dumps(call_tests[:1]),
            "private_test_cases": packed_tests(call_tests[1:]),
            "metadata": json.dumps({"func_name": "order"}),
        },
    ]


def humaneval_rows() -> list[dict]:
    """Problems of our own in HumanEval+'s format."""
    return [
        {
            "task_id": "HumanEval/0",
            "prompt": "from typing import List\n\n\ndef running_sum(xs: List[int]) -> List[int]:\n"
            '    """Sums so far."""\n',
            "entry_point": "running_sum",
            "canonical_solution": "    out, total = [], 0\n    for x in xs:\n        total += x\n"
            "        out.append(total)\n"
            "    return out\n",
            "base_input": [[[1, 2, 3]], [[]]],
            "plus_input": [[[5, -5, 7]], [[10**12, 1]]],
            "atol": 0,
            "contract": "",
        },
        {
            "task_id": "HumanEval/1",
            "prompt": 'def half(x: float) -> float:\n    """Half of x."""\n',
            "entry_point": "half",
            "canonical_solution": "    return x / 2\n",
            "base_input": [[3.0]],
            "plus_input": [[0.1], [1e300]],
            "atol": 0,
            "contract": "",
        },
    ]
