"""The tiny base's documents, held-out tasks and seeds against a run's own parser, verifier and sandbox."""

import asyncio
import json
import re
from random import Random

import pytest

from azr_overrides.sandbox import Sandbox, SandboxConfig
from azr_overrides.seeds import read_seeds
from azr_overrides.tasks.parsing import ParseOptions, format_ok, parse_answer, parse_proposal
from azr_overrides.tasks.types import Candidate, Outcome, Task, TaskKind
from azr_overrides.tasks.verification import Verifier
from recipes.tiny_base import seeds
from recipes.tiny_base.documents import DocumentKind, write_document
from recipes.tiny_base.generator import statement_count
from recipes.tiny_base.heldout import HELDOUT_FILE, STATEMENTS, TASKS_PER_CELL, load_heldout, make_rows
from recipes.tiny_base.sampling import is_held_out

SANDBOX = SandboxConfig(min_isolation="rlimits")
BLOCK = re.compile(r"```(\w+)\n(.*?)\n```\n", re.DOTALL)


def question_and_completion(kind: DocumentKind, seed: int) -> tuple[list[tuple[str, str]], str]:
    """The question's blocks and the completion, from its opening tag on."""
    text = write_document(Random(f"{kind}{seed}"), kind=kind).text
    question, _, completion = text.partition("<think>\n")
    return BLOCK.findall(question), "<think>\n" + completion.removesuffix("<|im_end|>")


async def validated(verifier: Verifier, candidates: list[Candidate]) -> list[Task]:
    tasks = await asyncio.gather(*map(verifier.validate, candidates))
    assert all(isinstance(task, Task) for task in tasks), tasks
    return [task for task in tasks if isinstance(task, Task)]


def test_proposals_in_documents_are_valid_tasks():
    async def check():
        candidates = []
        for seed in range(40):
            _, completion = question_and_completion(DocumentKind.PROPOSE, seed)
            assert format_ok(completion, "answer")
            candidates.append(parse_proposal(TaskKind.CODE_O, completion, ParseOptions()))
        for seed in range(20):
            blocks, completion = question_and_completion(DocumentKind.PROPOSE_INPUTS, seed)
            assert format_ok(completion, "answer")
            reference = Task("", TaskKind.CODE_O, blocks[0][1], (), ())
            options = ParseOptions(num_inputs=4)
            candidates.append(parse_proposal(TaskKind.CODE_F, completion, options, reference=reference))
        async with Sandbox(SANDBOX) as sandbox:
            for task in await validated(Verifier(sandbox), candidates):
                assert len(set(task.inputs)) == len(task.inputs)
                assert bool(task.message) == (task.kind is TaskKind.CODE_F)

    asyncio.run(check())


def test_answers_in_documents_are_judged_correct():
    """The tracer's values are the sandbox's."""

    async def check():
        async with Sandbox(SANDBOX) as sandbox:
            verifier = Verifier(sandbox)
            for kind, task_kind in (
                (DocumentKind.OUTPUT, TaskKind.CODE_O),
                (DocumentKind.INPUT, TaskKind.CODE_I),
                (DocumentKind.PROGRAM, TaskKind.CODE_F),
            ):
                for seed in range(30):
                    blocks, completion = question_and_completion(kind, seed)
                    answer = parse_answer(task_kind, completion, ParseOptions())
                    task = await _asked(verifier, task_kind, blocks, answer.text)
                    verdict = await verifier.judge(task, answer)
                    assert verdict.outcome is Outcome.CORRECT, (task, answer, verdict)

    asyncio.run(check())


async def _asked(verifier: Verifier, kind: TaskKind, blocks: list[tuple[str, str]], answer: str) -> Task:
    """The task that a question asks; for code_o its output comes from the sandbox, not from the document."""
    bodies = {label: [body for name, body in blocks if name == label] for label, _ in blocks}
    if kind is TaskKind.CODE_O:
        candidate = Candidate(kind, bodies["python"][0], tuple(bodies["input"]))
        return (await validated(verifier, [candidate]))[0]
    if kind is TaskKind.CODE_I:
        return Task("", kind, bodies["python"][0], ("",), tuple(bodies["output"]))
    # The visible pairs stand in for the hidden ones, too: the document shows no others.
    shown = tuple(bodies["input"]) * 2, tuple(bodies["output"]) * 2
    return Task("", kind, answer, *shown, message=bodies["message"][0])


def test_held_out_file_is_what_the_generator_makes():
    tasks = load_heldout()
    assert [row.task() for row in make_rows()] == tasks
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert all(is_held_out(task.program) for task in tasks)
    cells = [(task.kind, statement_count(task.program)) for task in tasks]
    for kind, lengths in STATEMENTS.items():
        assert [cells.count((kind, length)) for length in lengths] == [TASKS_PER_CELL] * len(lengths)


def test_held_out_outputs_are_those_of_the_sandbox():
    async def check():
        known = load_heldout()
        candidates = [Candidate(task.kind, task.program, task.inputs, message=task.message) for task in known]
        async with Sandbox(SANDBOX) as sandbox:
            tasks = await validated(Verifier(sandbox), candidates)
        assert [task.outputs for task in tasks] == [task.outputs for task in known]
        assert [task.task_id for task in tasks] == [task.task_id for task in known]

    asyncio.run(check())


def test_seed_files_load_as_seeds_and_their_outputs_are_those_of_the_sandbox():
    async def check():
        candidates = read_seeds(seeds.FOLDER / seeds.IO_FILE, TaskKind.CODE_O)
        candidates += read_seeds(seeds.FOLDER / seeds.CODE_F_FILE, TaskKind.CODE_F)
        async with Sandbox(SANDBOX) as sandbox:
            tasks = await validated(Verifier(sandbox), candidates)
        claimed = [(row["output"],) for row in seeds.io_rows()]
        claimed += [tuple(row["outputs"]) for row in seeds.code_f_rows()]
        assert [task.outputs for task in tasks] == claimed

    asyncio.run(check())


@pytest.mark.parametrize(
    "line", ["{", '{"kind": "code_x"}', '{"kind": "code_o", "program": "p", "inputs": ["1"], "other": 1}']
)
def test_a_broken_held_out_file_is_refused_with_its_line(tmp_path, line):
    path = tmp_path / "heldout.jsonl"
    first = HELDOUT_FILE.read_text(encoding="utf-8").splitlines()[0]
    path.write_text(f"{first}\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"heldout\.jsonl, line 2"):
        load_heldout(path)
    assert json.loads(first)["kind"] == "code_o"
