import json

import pytest

from eval.data import sources
from eval.data.loaders import load_problems
from eval.data.registry import BENCHMARKS, DataFile, select_benchmarks
from eval.types import UsageError
from tests.eval_support import BENCHMARK_DATA, MATH_SETS, lcb_rows, needs_benchmark_data, write_jsonl


@needs_benchmark_data
@pytest.mark.parametrize("name", [*MATH_SETS, "mbpp_plus"])
def test_real_data_has_the_pinned_hash_and_count(name):
    benchmark = BENCHMARKS[name]
    problems = load_problems(benchmark, list(sources.require_files(benchmark, BENCHMARK_DATA)))
    assert len(problems) == benchmark.size
    assert all(problem.question for problem in problems)
    if name != "mbpp_plus":
        assert all(problem.gold for problem in problems)


@needs_benchmark_data
def test_a_changed_file_is_refused(tmp_path):
    content = (BENCHMARK_DATA / "aime25.jsonl").read_text()
    (tmp_path / "aime25.jsonl").write_text(content.replace("70", "71", 1))
    with pytest.raises(UsageError, match=r"aime25.jsonl has the wrong content.*fetch-data"):
        sources.require_files(BENCHMARKS["aime25"], tmp_path)


@needs_benchmark_data
def test_a_wrong_number_of_problems_is_refused(tmp_path):
    lines = (BENCHMARK_DATA / "aime25.jsonl").read_text().splitlines()[:-1]
    (tmp_path / "aime25.jsonl").write_text("\n".join(lines))
    with pytest.raises(UsageError, match="29 problems .* expected 30"):
        load_problems(BENCHMARKS["aime25"], [tmp_path / "aime25.jsonl"])


def test_a_missing_file_says_how_to_get_it(tmp_path):
    with pytest.raises(UsageError, match="fetch-data --benchmarks math500"):
        sources.require_files(BENCHMARKS["math500"], tmp_path)


def test_hub_files_are_checked_against_the_note_of_their_download(tmp_path):
    path = write_jsonl(tmp_path / "livecodebench_test.jsonl", lcb_rows())
    spec = BENCHMARKS["livecodebench"].files[0]
    with pytest.raises(UsageError, match="fetch-data"):
        sources.check_file(path, spec)
    note = {"revision": sources.LCB_REVISION, "sha256": sources.file_digest(path, "sha256")}
    path.with_name(path.name + ".source.json").write_text(json.dumps(note))
    assert sources.check_file(path, spec) == note["sha256"]
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UsageError, match="wrong content"):
        sources.check_file(path, spec)


def test_downloads_are_unpacked_checked_and_only_then_put_in_place(tmp_path):
    import gzip
    import hashlib

    content = b'{"task_id": 1}\n'
    packed = tmp_path / "remote.jsonl.gz"
    packed.write_bytes(gzip.compress(content))
    digest = hashlib.sha256(content).hexdigest()
    target = tmp_path / "data"
    target.mkdir()
    sources._fetch_url(DataFile("a.jsonl", f"sha256:{digest}", url=packed.as_uri()), target / "a.jsonl")
    assert (target / "a.jsonl").read_bytes() == content
    with pytest.raises(UsageError, match="wrong content"):
        sources._fetch_url(DataFile("b.jsonl", f"sha256:{'0' * 64}", url=packed.as_uri()), target / "b.jsonl")
    with pytest.raises(UsageError, match="could not download"):
        sources._fetch_url(DataFile("c.jsonl", "", url=(tmp_path / "none.gz").as_uri()), target / "c.jsonl")
    assert sorted(path.name for path in target.iterdir()) == ["a.jsonl"]


def test_a_broken_line_is_named(tmp_path):
    path = tmp_path / "aime24.jsonl"
    path.write_text('{"problem": "p", "answer": 1}\n{"problem": \n')
    with pytest.raises(UsageError, match="line 2"):
        load_problems(BENCHMARKS["aime24"], [path], check_count=False)
    path.write_text('{"problem": "p"}\n')
    with pytest.raises(UsageError, match="record 0 is not a AIME 24 problem"):
        load_problems(BENCHMARKS["aime24"], [path], check_count=False)


def test_benchmarks_are_chosen_by_group_and_name():
    assert [b.name for b in select_benchmarks("code")] == ["humaneval_plus", "mbpp_plus", "livecodebench"]
    assert [b.name for b in select_benchmarks("gsm8k,aime24")] == ["aime24", "gsm8k"]
    assert len(select_benchmarks("all")) == 10
    with pytest.raises(UsageError, match="unknown benchmark 'mmlu'"):
        select_benchmarks("math,mmlu")
