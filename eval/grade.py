"""Stage ``grade``: a verdict for every completion that has none. Needs no GPU and no vLLM."""

import importlib.metadata
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from eval.data.registry import BENCHMARKS
from eval.progress import Progress
from eval.prompts.choose import TEMPLATES
from eval.run import read_benchmark
from eval.store import Appender, PlanEntry, Store, write_json
from eval.types import Completion, Grade, Group, Problem, Profile, Status, UsageError

MATH_GRADER_VERSION = 1
CODE_GRADER_VERSION = 1


@dataclass(frozen=True, slots=True)
class GradeOptions:
    out: Path
    data_dir: Path | None = None  # None: where the run found it
    completions: Path | None = None
    ground_truth: Path | None = None  # None: OUT/ground_truth
    workers: int = 2
    min_isolation: str = "seccomp"


@dataclass(frozen=True, slots=True)
class _Job:
    """One completion with its problem."""

    key: str
    problem: Problem
    text: str
    template: str


def grader_name(benchmark: str, profile: Profile) -> str:
    """Names the file of verdicts: another profile, version or library grades anew."""
    if BENCHMARKS[benchmark].group is Group.MATH:
        library = importlib.metadata.version("math-verify")
        return f"math-{profile}-{MATH_GRADER_VERSION}-mathverify{library}"
    if benchmark == "livecodebench":
        return f"livecodebench-{profile}-{CODE_GRADER_VERSION}"
    return f"evalplus{importlib.metadata.version('evalplus')}-{profile}-{CODE_GRADER_VERSION}"


def grade_key(entry: PlanEntry) -> str:
    """Verdicts belong to a problem: two problems may share a prompt, and so a completion."""
    return f"{entry.benchmark}/{entry.problem_id}/{entry.key}"


def grade(options: GradeOptions) -> int:
    """Returns the number of verdicts that were added."""
    store = Store(options.out, options.completions)
    run = store.read_run()
    profile = Profile(run["profile"])
    data_dir = options.data_dir or Path(run["data_dir"])
    completions = store.read_completions()
    plan = store.read_plan()
    absent = sum(entry.key not in completions for entry in plan)
    if absent:
        print(
            f"warning: {absent} of {len(plan)} completions are missing; run again to make them",
            file=sys.stderr,
        )
    added = 0
    for name in run["benchmarks"]:
        problems, digests = read_benchmark(BENCHMARKS[name], data_dir, not run["pinned_data"], 0)
        if digests != run["benchmarks"][name]["sha256"]:
            raise UsageError(f"{BENCHMARKS[name].title}: {data_dir} holds other data than the run used")
        entries = [entry for entry in plan if entry.benchmark == name and entry.key in completions]
        added += _grade_benchmark(options, store, name, profile, entries, completions, problems, digests)
    return added


def _grade_benchmark(
    options: GradeOptions,
    store: Store,
    name: str,
    profile: Profile,
    entries: list[PlanEntry],
    completions: dict[str, Completion],
    problems: list[Problem],
    digests: dict[str, str],
) -> int:
    grader = grader_name(name, profile)
    known = store.read_grades(grader)
    by_id = {problem.problem_id: problem for problem in problems}
    jobs = {
        key: _Job(key, by_id[entry.problem_id], completions[entry.key].text, entry.template)
        for entry in entries
        if (key := grade_key(entry)) not in known
    }
    if not jobs:
        return 0
    progress = Progress(f"grading {BENCHMARKS[name].title}", len(entries), len(entries) - len(jobs))
    with Appender(store.grades_path(grader)) as appender:

        def record(verdict: Grade) -> None:
            appender.append(asdict(verdict))
            progress.advance()

        if BENCHMARKS[name].group is Group.MATH:
            _grade_math(jobs.values(), profile, options.workers, record)
        else:
            _grade_code(jobs.values(), profile, options, store, digests, record)
    progress.finish()
    return len(jobs)


def _grade_math(jobs: Iterable[_Job], profile: Profile, workers: int, record: Callable[[Grade], None]) -> None:
    from eval.math.grader import MathItem, grade_math

    items = [
        MathItem(job.key, job.problem.benchmark, job.problem.question, job.problem.gold, job.text, job.template)
        for job in jobs
    ]
    for verdict in grade_math(items, profile, workers):
        record(Grade(verdict.key, verdict.status, verdict.extracted[:500], verdict.detail))


def _grade_code(
    jobs: Iterable[_Job],
    profile: Profile,
    options: GradeOptions,
    store: Store,
    digests: dict[str, str],
    record: Callable[[Grade], None],
) -> None:
    from eval.code.isolation import measure, require
    from eval.code.runner import CodeRunner

    # The reference solutions run in templates of their own: nothing they compute is left where model code runs.
    references = _prepare_references(list(jobs), options, store, digests)
    with CodeRunner(options.workers) as runner, ThreadPoolExecutor(options.workers) as threads:
        isolation = measure(runner)
        require(isolation, options.min_isolation)
        write_json(store.directory / "isolation.json", isolation.as_dict())

        def one(job: _Job) -> Grade:
            program, status, detail = _grade_program(runner, job, profile, references)
            return Grade(job.key, status, program[:20_000], detail, isolation.level.value)

        for verdict in threads.map(one, jobs):
            record(verdict)


def _grade_program(runner, job: _Job, profile: Profile, references) -> tuple[str, Status, str]:
    from eval.code import evalplus_grader, lcb_grader
    from eval.code.programs import program_of
    from eval.code.runner import RunnerFailure
    from eval.data.lcb_tests import BadTests

    program = program_of(job.problem, job.text, TEMPLATES[job.template].answer, profile)
    if not program:
        return "", Status.NO_ANSWER, ""
    for attempt in (1, 2):
        try:
            if job.problem.benchmark == "livecodebench":
                parity = profile is Profile.PARITY
                limit = lcb_grader.AZR_TIME_LIMIT_S if parity else lcb_grader.UPSTREAM_TIME_LIMIT_S
                return program, *lcb_grader.grade_program(runner, job.problem, program, limit)
            task = evalplus_grader.as_task(job.problem)
            if task.task_id not in references:
                return program, Status.ERROR, "the reference solution failed on this machine"
            return program, *evalplus_grader.grade_program(runner, task, program, references[task.task_id])
        except BadTests as error:
            return program, Status.ERROR, f"BadTests: {error}"
        except (RunnerFailure, OSError) as error:  # a lost process says nothing about the program: once more
            if attempt == 2:
                return program, Status.ERROR, f"{type(error).__name__}: {error}"
    raise AssertionError("unreachable")


def _prepare_references(jobs: list[_Job], options: GradeOptions, store: Store, digests: dict[str, str]):
    """Expected outputs of every evalplus task among the jobs, computed where they are not yet known."""
    if not jobs or jobs[0].problem.benchmark == "livecodebench":
        return None
    from eval.code.evalplus_grader import GroundTruth, ReferenceFailure, as_task
    from eval.code.runner import CodeRunner

    (digest,) = digests.values()
    truth = GroundTruth(options.ground_truth or store.directory / "ground_truth", digest)
    problems = {job.problem.problem_id: job.problem for job in jobs}
    missing = [as_task(problem) for problem_id, problem in problems.items() if problem_id not in truth]
    if missing:
        progress = Progress("reference solutions", len(missing))
        with CodeRunner(options.workers) as runner, ThreadPoolExecutor(options.workers) as threads:
            futures = [threads.submit(truth.compute, runner, task) for task in missing]
            for task, future in zip(missing, futures, strict=True):
                try:
                    truth.store(task.task_id, future.result())
                except ReferenceFailure as error:
                    print(f"warning: {error}; answers to this task are graded as errors", file=sys.stderr)
                progress.advance()
        progress.finish()
    return truth
