"""``python -m eval run|grade|table|fetch-data``: each stage its own process, so that heavy imports stay apart."""

import argparse
import os
import sys
from pathlib import Path

from eval.data.registry import BENCHMARKS, select_benchmarks
from eval.data.sources import DATA_DIR_VARIABLE, data_directory
from eval.types import ModelKind, Profile, UsageError

_KINDS = [kind.value for kind in ModelKind]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eval", description=__doc__)
    stages = parser.add_subparsers(dest="stage", required=True)

    run = stages.add_parser("run", help="generate the completions that are missing (needs vLLM)")
    run.add_argument("--base", required=True, help="folder or hub name of the base model")
    run.add_argument("--revision", help="commit of a hub model")
    run.add_argument("--adapter", action="append", default=[], metavar="NAME=DIR", help="a PEFT folder; repeatable")
    run.add_argument("--population", type=Path, help="a run directory (newest checkpoint) or one checkpoint")
    run.add_argument("--baseline", type=Path, help="a PEFT folder, or a single-agent run")
    _add_benchmarks(run)
    _add_data_dir(run)
    run.add_argument("--profile", choices=[p.value for p in Profile], default="fixed")
    run.add_argument("--base-kind", choices=_KINDS, default="base", help="how the base is asked")
    run.add_argument("--member-kind", choices=_KINDS, default="azr", help="how adapters are asked")
    run.add_argument("--uniform-prompt", action="store_true", help="also ask the base as the adapters are asked")
    run.add_argument(
        "--template",
        action="append",
        default=[],
        metavar="FAMILY=NAME",
        help="math, code, lcb or a benchmark",
    )
    run.add_argument("--limit", type=int, default=0, help="first N problems of each benchmark")
    run.add_argument("--samples", type=int, default=1)
    run.add_argument("--temperature", type=float, default=0.0)
    run.add_argument("--top-p", type=float, default=1.0)
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--max-tokens", type=int, default=0, help="cap answers below the protocol's length")
    run.add_argument("--max-model-len", type=int, default=0, help="context length; default: the model's, at most 32768")
    run.add_argument("--dtype", default="auto")
    run.add_argument("--tensor-parallel", type=int, default=1)
    run.add_argument("--gpu-memory", type=float, default=0.9)
    run.add_argument("--max-num-seqs", type=int, default=256)
    run.add_argument("--trust-remote-code", action="store_true")
    run.add_argument("--shard", help="I/N: this process makes part I (from 0) of N; 'slurm' reads the task's number")
    run.add_argument("--unpinned-data", action="store_true", help="accept data files other than the pinned ones")
    _add_out(run)

    grade = stages.add_parser("grade", help="judge the completions that have no verdict yet")
    grade.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    grade.add_argument("--ground-truth", type=Path, help="where expected outputs are kept; default OUT/ground_truth")
    grade.add_argument(
        "--min-isolation", default="seccomp", choices=["full", "seccomp", "landlock", "namespaces", "rlimits"]
    )
    _add_data_dir(grade)
    _add_out(grade)

    table = stages.add_parser("table", help="results of one evaluation, or a comparison of several")
    table.add_argument("evaluations", nargs="+", metavar="[LABEL=]DIR")
    table.add_argument("-o", "--out", type=Path, help="where table.* go; default: the (first) evaluation")

    fetch = stages.add_parser("fetch-data", help="download and check benchmark data")
    _add_benchmarks(fetch)
    _add_data_dir(fetch)
    return parser


def _add_benchmarks(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(BENCHMARKS)
    parser.add_argument("--benchmarks", default="all", help=f"all, code, math or some of: {names}")


def _add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", help=f"benchmark files; default ${DATA_DIR_VARIABLE} or the user's cache")


def _add_out(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-o", "--out", type=Path, required=True, help="directory of this evaluation")
    parser.add_argument("--cache", type=Path, help="completions shared by several evaluations; default OUT/completions")


def _shard(text: str | None) -> tuple[int, int]:
    if text is None:
        return (0, 1)
    if text == "slurm":
        try:
            return (int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_NTASKS"]))
        except (KeyError, ValueError) as error:
            raise UsageError(
                "--shard slurm works inside srun only: SLURM_PROCID and SLURM_NTASKS are not set"
            ) from error
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and int(index) < int(count)):
        raise UsageError(f"--shard {text!r}: expected I/N with 0 <= I < N, or slurm")
    return (int(index), int(count))


def _run(arguments: argparse.Namespace) -> None:
    from eval import members as who
    from eval.engine import EngineSettings
    from eval.run import RunOptions, run

    if arguments.samples < 1 or arguments.limit < 0 or arguments.temperature < 0:
        raise UsageError("--samples must be at least 1, --limit and --temperature not negative")
    if arguments.samples > 1 and arguments.temperature == 0:
        raise UsageError("--samples above 1 needs --temperature above 0: greedy samples are all the same")
    member_kind = ModelKind(arguments.member_kind)
    members = [who.EvalMember(who.BASE_NAME, "base", ModelKind(arguments.base_kind))]
    if arguments.uniform_prompt:
        members.append(who.EvalMember(who.UNIFORM_BASE_NAME, "base", member_kind))
    if arguments.baseline:
        members.append(who.baseline_member(arguments.baseline, member_kind))
    if arguments.population:
        members += who.population_members(arguments.population, member_kind)
    members += [who.named_adapter(argument, member_kind) for argument in arguments.adapter]
    templates = {}
    for argument in arguments.template:
        family, separator, name = argument.partition("=")
        if not separator or family not in ("math", "code", "lcb", *BENCHMARKS):
            raise UsageError(
                f"--template {argument!r}: expected FAMILY=NAME, FAMILY being math, code, lcb or a benchmark"
            )
        templates[family] = name
    options = RunOptions(
        base=arguments.base,
        revision=arguments.revision,
        members=members,
        benchmarks=select_benchmarks(arguments.benchmarks),
        profile=Profile(arguments.profile),
        data_dir=data_directory(arguments.data_dir),
        out=arguments.out,
        limit=arguments.limit,
        samples=arguments.samples,
        temperature=arguments.temperature,
        top_p=arguments.top_p,
        seed=arguments.seed,
        max_tokens=arguments.max_tokens,
        templates=templates,
        unpinned=arguments.unpinned_data,
        completions=arguments.cache,
        shard=_shard(arguments.shard),
        engine=EngineSettings(
            dtype=arguments.dtype,
            max_model_len=arguments.max_model_len,
            tensor_parallel=arguments.tensor_parallel,
            gpu_memory=arguments.gpu_memory,
            max_num_seqs=arguments.max_num_seqs,
            trust_remote_code=arguments.trust_remote_code,
        ),
    )
    made = run(options)
    print(f"{made} completions made; next: python -m eval grade -o {arguments.out}", file=sys.stderr)


def _grade(arguments: argparse.Namespace) -> None:
    from eval.grade import GradeOptions, grade
    from eval.results import collect, write_results

    added = grade(
        GradeOptions(
            out=arguments.out,
            data_dir=Path(arguments.data_dir) if arguments.data_dir else None,
            completions=arguments.cache,
            ground_truth=arguments.ground_truth,
            workers=arguments.workers,
            min_isolation=arguments.min_isolation,
        )
    )
    write_results(arguments.out, collect(arguments.out, completions=arguments.cache))
    print(f"{added} verdicts added; next: python -m eval table {arguments.out}", file=sys.stderr)


def _table(arguments: argparse.Namespace) -> None:
    from eval.render import print_table, write_table
    from eval.results import collect
    from eval.table import build_table

    evaluations = []
    for argument in arguments.evaluations:
        label, separator, folder = argument.partition("=")
        evaluations.append(collect(Path(folder), label) if separator else collect(Path(argument)))
    table = build_table(evaluations)
    print_table(table)
    first = Path(arguments.evaluations[0].partition("=")[2] or arguments.evaluations[0])
    for path in write_table(table, arguments.out or first):
        print(path)


def _fetch_data(arguments: argparse.Namespace) -> None:
    from eval.data.sources import fetch

    directory = data_directory(arguments.data_dir)
    failures = []
    for benchmark in select_benchmarks(arguments.benchmarks):
        try:
            for path in fetch(benchmark, directory):
                print(f"{benchmark.title}: {path}")
        except UsageError as error:
            failures.append(f"{benchmark.title}: {error}")
    if failures:
        raise UsageError("\n".join(failures))


def main(argv: list[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    stages = {"run": _run, "grade": _grade, "table": _table, "fetch-data": _fetch_data}
    try:
        stages[arguments.stage](arguments)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
