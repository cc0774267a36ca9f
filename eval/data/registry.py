"""The ten benchmarks: names, sizes, pinned files. Nothing is shipped; ``sources.py`` fetches and checks."""

from dataclasses import dataclass

from eval.types import Group, UsageError

AZR_COMMIT = "a82124e514e27692aa9860c5ee21dbf9d81e3bc5"
AZR_RAW = f"https://raw.githubusercontent.com/LeapLabTHU/Absolute-Zero-Reasoner/{AZR_COMMIT}"
EVALPLUS_RELEASES = "https://github.com/evalplus"
LCB_REPO = "livecodebench/code_generation_lite"
LCB_REVISION = "0687ab61843a90a0cc864a2b67db729861cd0ae5"


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a benchmark.

    ``digest`` is ``"sha256:..."`` or ``"md5:..."`` of the unpacked file. It is empty only for files of a Hugging
    Face data set whose revision is pinned: the hub then states the SHA-256, which is checked after the download
    and written beside the file.
    """

    name: str  # file name in the data directory
    digest: str
    url: str = ""  # plain download; ".gz" is unpacked
    hub_path: str = ""  # path in the pinned Hugging Face data set


@dataclass(frozen=True, slots=True)
class Benchmark:
    name: str
    title: str
    group: Group
    size: int  # number of problems; a file with another count is an error
    files: tuple[DataFile, ...]
    in_average: bool = True  # published averages leave GSM8K out


def _azr_math(name: str, sha256: str) -> tuple[DataFile, ...]:
    url = f"{AZR_RAW}/evaluation/math_eval/eval/data/{name}/test.jsonl"
    return (DataFile(f"{name}.jsonl", f"sha256:{sha256}", url=url),)


def _lcb_files() -> tuple[DataFile, ...]:
    parts = ("test", "test2", "test3", "test4", "test5")
    return tuple(DataFile(f"livecodebench_{part}.jsonl", "", hub_path=f"{part}.jsonl") for part in parts)


BENCHMARKS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "humaneval_plus",
            "HumanEval+",
            Group.CODE,
            164,
            (
                DataFile(
                    "humanevalplus.jsonl",
                    "md5:fe585eb4df8c88d844eeb463ea4d0302",
                    url=f"{EVALPLUS_RELEASES}/humanevalplus_release/releases/download/v0.1.10/HumanEvalPlus.jsonl.gz",
                ),
            ),
        ),
        Benchmark(
            "mbpp_plus",
            "MBPP+",
            Group.CODE,
            378,
            (
                DataFile(
                    "mbppplus.jsonl",
                    "sha256:b54e762755248ca411b523c917fa9f93c07b5ff2966bf60b3917b853926a3dad",
                    url=f"{EVALPLUS_RELEASES}/mbppplus_release/releases/download/v0.2.0/MbppPlus.jsonl.gz",
                ),
            ),
        ),
        Benchmark("livecodebench", "LiveCodeBench v5", Group.CODE, 880, _lcb_files()),
        Benchmark(
            "aime24",
            "AIME 24",
            Group.MATH,
            30,
            _azr_math("aime24", "af2b8bd2aa911b6333ad0df32f3ca05c7ae8ed10f1731f4372c8ae26990bf7ac"),
        ),
        Benchmark(
            "aime25",
            "AIME 25",
            Group.MATH,
            30,
            _azr_math("aime25", "20c1ca392758d96bd1e28af15d9f30df5660257927cacc9eac7301c29f677d1a"),
        ),
        Benchmark(
            "amc23",
            "AMC 23",
            Group.MATH,
            40,
            _azr_math("amc23", "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4"),
        ),
        Benchmark(
            "math500",
            "MATH-500",
            Group.MATH,
            500,
            _azr_math("math500", "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132"),
        ),
        Benchmark(
            "minerva_math",
            "Minerva",
            Group.MATH,
            272,
            _azr_math("minerva_math", "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2"),
        ),
        Benchmark(
            "gsm8k",
            "GSM8K",
            Group.MATH,
            1319,
            _azr_math("gsm8k", "9f098df7ff4522078d6ccec27a5c38a454790fdb51131bedfaa0e490070d5394"),
            in_average=False,
        ),
        Benchmark(
            "olympiadbench",
            "OlympiadBench",
            Group.MATH,
            675,
            _azr_math("olympiadbench", "bb8c1e38a16ea9eacb77530315a674d883f267fbff79183effc53681b4fcc416"),
        ),
    )
}


def select_benchmarks(text: str) -> list[Benchmark]:
    """Benchmarks named by ``all``, ``code``, ``math`` or a comma-separated list, in table order."""
    wanted: set[str] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name == "all":
            wanted.update(BENCHMARKS)
        elif name in (Group.CODE, Group.MATH):
            wanted.update(b.name for b in BENCHMARKS.values() if b.group == name)
        elif name in BENCHMARKS:
            wanted.add(name)
        else:
            known = ", ".join(BENCHMARKS)
            raise UsageError(f"unknown benchmark {name!r}; choose all, code, math or from: {known}")
    if not wanted:
        raise UsageError("no benchmark chosen; pass --benchmarks all, code, math or a list of names")
    return [benchmark for name, benchmark in BENCHMARKS.items() if name in wanted]
