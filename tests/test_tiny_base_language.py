"""The tiny base's language: programs, traces, documents, seeds."""

import ast
import json
import re
from random import Random

import pytest

from azr_overrides.tasks.prompts import PromptSet
from azr_overrides.tasks.types import Task, TaskKind
from recipes.tiny_base import documents, seeds
from recipes.tiny_base.documents import PROMPTS_FILE, DocumentKind, write_document
from recipes.tiny_base.generator import statement_count, write_program
from recipes.tiny_base.language import ValueType
from recipes.tiny_base.sampling import is_held_out, sample, sample_informative
from recipes.tiny_base.tracer import TraceLimit, trace

PROGRAM = re.compile(r"```python\n(.*?)\n```\n", re.DOTALL)


def test_trace_shows_every_reduction_and_the_new_state():
    source = "def f(x):\n    a = len(x) + 3\n    if a > 4:\n        a -= 1\n    return [v * a for v in x]"
    lines, value = trace(source, ([3, 1],))
    assert lines == [
        "a = len(x) + 3 : len([3, 1]) + 3 : 2 + 3 : a=5",
        "if a > 4 : 5 > 4 : True",
        "a -= 1 : 5 - 1 : a=4",
        "return [v * a for v in x] : [v * 4 for v in [3, 1]] : [12, 4]",
    ]
    assert value == [12, 4]


def test_trace_of_loops_lists_each_round():
    lines, value = trace("def f(s):\n    t = ''\n    for k in s:\n        t = k + t\n    return t", ("gh",))
    assert value == "hg"
    assert lines[1:7] == [
        "for k in s : ['g', 'h']",
        "k='g'",
        "t = k + t : 'g' + '' : t='g'",
        "k='h'",
        "t = k + t : 'h' + 'g' : t='hg'",
        "end",
    ]


@pytest.mark.parametrize(
    "source",
    [
        "def f(a):\n    while a > 0:\n        a += 1\n    return a",
        "def f(a):\n    return a * 90",
        "def f(a):\n    x = [1]\n    for v in x:\n        x.append(a)\n    return x",
        "def f(a):\n    a += 1",
        "def f(a):\n    import os\n    return a",
    ],
)
def test_trace_refuses_what_it_cannot_show(source):
    with pytest.raises(TraceLimit):
        trace(source, (5,))


def test_traces_do_not_change_the_arguments():
    arguments = ([1, 2],)
    trace("def f(x):\n    x.append(3)\n    return x", arguments)
    assert arguments == ([1, 2],)


def test_programs_are_reproducible_and_have_about_the_asked_length():
    first = [write_program(Random(seed), 3) for seed in range(50)]
    assert first == [write_program(Random(seed), 3) for seed in range(50)]
    lengths = [statement_count(program.source) for program in first]
    assert min(lengths) >= 4
    assert sum(length <= 6 for length in lengths) > 40


def test_samples_lie_on_the_asked_side_of_the_split():
    rng = Random(0)
    for held_out in (False, True):
        for _ in range(20):
            sampled = sample(rng, [1, 1, 1], 2, types=(ValueType.LIST,), held_out=held_out)
            assert is_held_out(sampled.program.source) == held_out
            assert sampled.program.types == (ValueType.LIST,)
            assert len({repr(example.arguments) for example in sampled.examples}) == 2


def test_few_informative_tasks_are_solved_by_most_inputs():
    rng = Random(1)
    shared = 0
    for _ in range(60):
        target, *others = [repr(e.output) for e in sample_informative(rng, [1, 1], 9).examples]
        shared += others.count(target) >= 2
    assert shared < 20


@pytest.mark.parametrize("kind", DocumentKind)
def test_documents_are_reproducible_and_contain_no_held_out_program(kind):
    texts = [write_document(Random(seed), kind=kind).text for seed in range(120)]
    assert texts == [write_document(Random(seed), kind=kind).text for seed in range(120)]
    programs = [program for text in texts for program in PROGRAM.findall(text)]
    assert len(programs) >= len(texts)
    assert not any(is_held_out(ast.unparse(ast.parse(program))) for program in programs)


def test_a_proposal_differs_from_its_reference_and_is_as_often_shorter_as_longer():
    rng = Random(2)
    pairs = []
    while len(pairs) < 400:
        programs = PROGRAM.findall(write_document(rng, kind=DocumentKind.PROPOSE).text)
        if len(programs) == 2:
            pairs.append(programs)
    assert all(reference != program for reference, program in pairs)
    growth = [statement_count(program) - statement_count(reference) for reference, program in pairs]
    assert set(growth) == {-1, 0, 1}
    assert abs(sum(growth) / len(growth)) < 0.12  # about three standard errors


def test_verdicts_in_documents_are_true():
    """``ok`` follows a trace that ends in the goal, ``no`` any other."""
    rng = Random(3)
    verdicts = []
    for kind in (DocumentKind.INPUT, DocumentKind.PROGRAM):
        for _ in range(100):
            text = write_document(rng, kind=kind).text
            for result, goal, verdict in re.findall(r" : ([^:\n]*)\ngoal (.*) (ok|no)\n", text):
                assert (result == goal) == (verdict == "ok")
                verdicts.append(verdict)
    assert 0.3 < verdicts.count("no") / len(verdicts) < 0.6


def test_prompts_have_the_wording_of_the_documents():
    prompts = PromptSet.load(str(PROMPTS_FILE))
    program = "def f(a):\n    return a"

    def task(kind):
        return Task("id", kind, program, ("1", "2", "3", "4"), ("5", "6", "7", "8"), message="int add")

    def content(messages):
        assert [message["role"] for message in messages] == ["user"]
        return messages[0]["content"]

    earlier = task(TaskKind.CODE_O)
    for kind in (TaskKind.CODE_O, TaskKind.CODE_I):
        assert content(prompts.proposer(kind, [])) == documents.propose_question()
        assert content(prompts.proposer(kind, [earlier])) == documents.propose_question((program, "1"))
    asked = content(prompts.proposer(TaskKind.CODE_F, [earlier], num_inputs=6))
    assert asked == documents.propose_inputs_question(program, 6)
    assert content(prompts.solver(earlier)) == documents.output_question(program, "1")
    assert content(prompts.solver(task(TaskKind.CODE_I))) == documents.input_question(program, "5")
    shown = documents.program_question([("1", "5"), ("2", "6")], "int add")
    assert content(prompts.solver(task(TaskKind.CODE_F))) == shown


def test_seed_files_are_what_the_generator_makes():
    for name, rows in ((seeds.IO_FILE, seeds.io_rows()), (seeds.CODE_F_FILE, seeds.code_f_rows())):
        written = (seeds.FOLDER / name).read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in written] == rows
        assert len(rows) == 64
        assert not any(is_held_out(row["snippet"]) for row in rows)
