"""The command line: one object in, one out, in order, whatever the lines hold."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from azr_overrides import verify

SEEDS = Path(__file__).parent.parent / "../shared/azr/seeds"
SQUARE = "def f(x):\n    return x * x"


def run_cli(capsys, tmp_path, rows: list, *options: str) -> tuple[int, list[dict], str]:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    code = verify.main([str(file), *options])
    captured = capsys.readouterr()
    return code, [json.loads(line) for line in captured.out.splitlines()], captured.err


def test_tasks_and_answers_of_every_kind(capsys, tmp_path):
    wrapped = "<think>so</think> <answer>```output\n9\n```</answer>"
    rows = [
        {"id": "a", "kind": "code_o", "program": SQUARE, "input": "3", "output": "9", "answer": "9.0"},
        {"id": "b", "kind": "code_o", "program": SQUARE, "input": "3", "answer": "8"},
        {"id": "c", "kind": "code_i", "program": SQUARE, "input": "3", "answer": "-3"},
        {"id": "d", "kind": "code_e", "program": SQUARE, "input": "'a'", "output": "TypeError", "answer": "TypeError"},
        {"id": "e", "kind": "code_f", "program": SQUARE, "inputs": ["1", "2", "3", "4"], "answer": SQUARE},
        {"id": "f", "kind": "code_o", "program": SQUARE, "input": "3", "completion": wrapped},
        {"id": "g", "kind": "code_o", "program": SQUARE, "input": "3", "completion": "it is 9"},
        {"id": "h", "program": "def f(x):\n    return sqrt(x)", "input": "4", "imports": ["from math import sqrt"]},
    ]
    code, out, _ = run_cli(capsys, tmp_path, rows)
    assert code == 0
    assert [row["id"] for row in out] == list("abcdefgh")
    assert all(row["valid"] and row["outcome"] == "task" for row in out)
    assert [row.get("correct") for row in out] == [True, False, True, True, True, True, False, None]
    assert [row.get("reward") for row in out] == [1.0, -0.5, 1.0, 1.0, 1.0, 1.0, -1.0, None]
    assert [row.get("format_ok") for row in out] == [True] * 6 + [False, None]
    assert out[0]["output"] == "9" and out[3]["output"] == "TypeError"
    assert out[4]["outputs"] == ["1", "4", "9", "16"]
    assert out[7]["output"] == "2.0"


def test_invalid_tasks_say_why_and_are_not_judged(capsys, tmp_path):
    rows = [
        {"id": 1, "program": "import random\ndef f(x):\n    return x", "input": "3", "answer": "3"},
        {"id": 2, "program": SQUARE, "input": "3", "output": "10"},
        {"id": 3, "program": "def f(x):\n    return x[9]", "input": "[]"},
    ]
    code, out, _ = run_cli(capsys, tmp_path, rows)
    assert code == 0
    assert [(row["valid"], row["outcome"]) for row in out] == [
        (False, "banned"),
        (False, "output_differs"),
        (False, "exception"),
    ]
    assert out[0]["correct"] is None and out[0]["reward"] is None
    assert "10" in out[1]["reason"] and "IndexError" in out[2]["reason"]


def test_bad_lines_are_reported_by_number_and_the_rest_is_done(capsys, tmp_path):
    rows = [
        "{not json",
        "[1]",
        "",
        {"program": SQUARE},
        {"program": 3, "input": "1"},
        {"program": SQUARE, "inputs": []},
        {"program": SQUARE, "inputs": ["1", "2"], "kind": "code_o"},
        {"program": SQUARE, "inputs": ["1"], "outputs": ["1", "2"], "kind": "code_f"},
        {"program": SQUARE, "input": "1", "kind": "code_x"},
        {"id": "last", "program": SQUARE, "input": "2"},
    ]
    code, out, errors = run_cli(capsys, tmp_path, rows)
    assert code == 1
    bad = [row["line"] for row in out if row["outcome"] == "bad_line"]
    assert bad == [1, 2, 4, 5, 6, 7, 8, 9]
    assert all(f"line {number}: " in errors for number in bad)
    assert out[-1] == {"id": "last", "valid": True, "outcome": "task", "reason": "", "output": "4"}


def test_standard_input_and_the_banned_list(tmp_path):
    row = {"program": "import hashlib\ndef f(x):\n    return x", "input": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "azr_overrides.verify", "-", "--banned-words", "os"],
        input=json.dumps(row),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["valid"] is True
    assert "isolation" in done.stderr and "1 lines: 1 valid" in done.stderr


def test_a_missing_file_is_an_error(capsys):
    assert verify.main(["no/such/file.jsonl"]) == 1
    assert "no/such/file.jsonl" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(not SEEDS.is_dir(), reason="upstream's seed files are not here")
def test_upstream_s_seed_files_are_read_as_they_are(capsys):
    """The numbers that the README quotes."""
    valid = {}
    for file in sorted(SEEDS.glob("*.jsonl")):
        assert verify.main([str(file)]) == 0
        out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert not any(row["outcome"] in ("bad_line", "unverified") for row in out)
        valid[file.name] = (sum(row["valid"] for row in out), len(out))
    assert sum(count for _, count in valid.values()) == 1280
    assert 85 <= sum(count - good for good, count in valid.values()) <= 95
