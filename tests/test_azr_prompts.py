"""Prompts: what the built-in ones say, and that a template file can say anything else."""

import sys

import jinja2
import pytest

from azr_overrides.tasks.prompts import RAW_CHAT_TEMPLATE, PromptSet, visible_pairs
from azr_overrides.tasks.types import Task, TaskKind

PROGRAM = "def f(a):\n    return a + 1"
IO_KINDS = (TaskKind.CODE_O, TaskKind.CODE_I, TaskKind.CODE_E)
TERSE = """
chat: template
wrappers:
  answer: "{{ text }}"
partials:
  blocks: |-
    {% macro block(label, body) %}```{{ label }}
    {{ body }}
    ```
    {% endmacro %}
proposer:
  code_o: |
    {% import "blocks" as b -%}
    Propose a task.
    {% for reference in references[:1] -%}
    {{ b.block("python", reference.program) }}{{ b.block("input", reference.inputs[0]) }}
    {%- endfor -%}
solver:
  code_f: |
    {% import "blocks" as b -%}
    Write the function.
    {% for pair in pairs -%}
    {{ b.block("input", pair.input) }}{{ b.block("output", pair.output) }}
    {%- endfor -%}
"""

# The two functions that AZR's own module has, with its parameter names.
UPSTREAM_PROMPTS = """
def get_code_problem_generator_prompt(
    problem_type, reference_snippets, banned_keywords, banned_assertion_keywords, composite_functions=None,
    remove_after_return=False, num_inputs=10, remove_input_from_snippet=False,
):
    return f"{problem_type} {reference_snippets} {banned_keywords} {banned_assertion_keywords} {num_inputs}"

def get_code_problem_predictor_prompt(
    problem_type, snippet, input_args=None, output=None, message=None, input_output_pairs=None
):
    return f"{problem_type} {snippet} {input_args} {output} {message} {input_output_pairs}"
"""


def task(kind=TaskKind.CODE_O, inputs=("41",), outputs=("42",), **fields):
    return Task("id", kind, PROGRAM, inputs, outputs, **fields)


def induction():
    values = tuple("12345")
    return task(TaskKind.CODE_F, values, tuple(str(int(v) + 1) for v in values), message="a hint")


def text(messages):
    (message,) = messages
    assert message["role"] == "user"
    return message["content"]


@pytest.fixture(scope="module")
def builtin():
    return PromptSet.load("builtin")


@pytest.mark.parametrize("kind", IO_KINDS)
def test_proposers_see_references_bans_and_the_form_of_the_answer(builtin, kind):
    prompt = text(
        builtin.proposer(
            kind,
            [task(kind), task(kind)],
            banned_words=["random", "os.path", "random"],
            banned_keywords=["raise"],
        )
    )
    assert prompt.count(PROGRAM) == 2
    assert "<snippet_0>" in prompt and "</snippet_1>" in prompt
    assert prompt.count("`random`") == 1 and "`os.path`" in prompt
    assert ("`raise`" in prompt) is (kind is TaskKind.CODE_E)
    assert f"```{'error' if kind is TaskKind.CODE_E else 'output'}\n42\n```" in prompt
    assert "```python" in prompt and "```input" in prompt


def test_the_difficulty_of_each_kind_is_that_of_its_solver(builtin):
    prompts = {kind: text(builtin.proposer(kind, [])) for kind in IO_KINDS}
    assert "predict the output from the program and the input" in prompts[TaskKind.CODE_O]
    assert "find a suitable input from the program and its output" in prompts[TaskKind.CODE_I]
    assert "which exception is raised" in prompts[TaskKind.CODE_E]


def test_composites_and_input_removal_are_asked_for_only_when_wanted(builtin):
    helper = "def g_0(x):\n    return -x"
    plain = text(builtin.proposer(TaskKind.CODE_O, []))
    asked = text(builtin.proposer(TaskKind.CODE_O, [], composites=[helper], remove_input_from_snippet=True))
    assert "already defined" not in plain and "Earlier tasks" not in plain
    assert helper in asked and "call every one of them" in asked
    assert "not assigned inside the program" in asked


def test_an_induction_proposer_sees_one_program(builtin):
    prompt = text(builtin.proposer(TaskKind.CODE_F, [task()], num_inputs=7))
    assert PROGRAM in prompt and "Write 7 inputs" in prompt and "```message" in prompt
    for references in ([], [task(), task()]):
        with pytest.raises(ValueError, match="exactly one program"):
            builtin.proposer(TaskKind.CODE_F, references)


def test_solvers_see_what_their_kind_gives_them(builtin):
    deduction, abduction = (text(builtin.solver(task(kind))) for kind in (TaskKind.CODE_O, TaskKind.CODE_I))
    assert PROGRAM in deduction and "41" in deduction and "42" not in deduction
    assert PROGRAM in abduction and "42" in abduction and "41" not in abduction
    error = text(builtin.solver(task(TaskKind.CODE_E, outputs=("KeyError",))))
    assert PROGRAM in error and "41" in error and "KeyError" not in error and "NoError" in error


def test_an_induction_solver_sees_half_of_the_pairs_and_no_program(builtin):
    assert visible_pairs(induction()) == [("1", "2"), ("2", "3")]
    prompt = text(builtin.solver(induction()))
    assert "```input_1\n2\n```" in prompt and "```output_1\n3\n```" in prompt and "a hint" in prompt
    assert PROGRAM not in prompt and "input_2" not in prompt


def test_long_values_are_cut_in_references_but_never_in_tasks(builtin):
    long = task(outputs=("'" + "x" * 1000 + "'",))
    assert "x" * 500 not in text(builtin.proposer(TaskKind.CODE_O, [long]))
    abduction = Task("id", TaskKind.CODE_I, PROGRAM, ("1",), long.outputs)
    assert "x" * 1000 in text(builtin.solver(abduction))


def test_wrappers_follow_the_answer_style():
    answer = text(PromptSet.load("builtin", "answer_addition").solver(task()))
    assert answer.endswith("Assistant: <think>") and "\nUser: " in answer
    boxed = text(PromptSet.load("builtin", "boxed_multiply").solver(task()))
    assert boxed.endswith("\\boxed{}.") and "<think>" not in boxed
    with pytest.raises(ValueError, match="no wrapper for reward_fn.extraction_type=none"):
        PromptSet.load("builtin", "none")


def test_raw_chats_join_contents_without_role_tokens(builtin):
    assert builtin.chat == "raw"
    messages = [{"role": "system", "content": "one"}, {"role": "user", "content": "two"}]
    assert jinja2.Template(RAW_CHAT_TEMPLATE).render(messages=messages) == "one\ntwo"
    assert PromptSet.load("builtin", chat="template").chat == "template"


def test_text_of_tasks_is_never_read_as_a_template(builtin):
    tricky = Task("id", TaskKind.CODE_O, "def f(a):\n    return '{{ task.outputs }} {% endif %}'", ("1",), ("2",))
    assert tricky.program in text(builtin.solver(tricky))
    assert tricky.program in text(builtin.proposer(TaskKind.CODE_O, [tricky]))


def test_a_terse_template_file_gives_exactly_its_text(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text(TERSE)
    prompts = PromptSet.load(str(path))
    assert prompts.chat == "template"
    assert text(prompts.proposer(TaskKind.CODE_O, [])) == "Propose a task.\n"
    assert text(prompts.proposer(TaskKind.CODE_O, [task(), task()])) == (
        f"Propose a task.\n```python\n{PROGRAM}\n```\n```input\n41\n```\n"
    )
    assert text(prompts.solver(induction())) == (
        "Write the function.\n```input\n1\n```\n```output\n2\n```\n```input\n2\n```\n```output\n3\n```\n"
    )
    with pytest.raises(ValueError, match="no template solver/code_o"):
        prompts.solver(task())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("chat: [", "not a YAML file"),
        ("just text", "expected a mapping"),
        ("chat: loud", "choose raw or template"),
        ("chat: raw\nsolvers: {}", "unknown sections solvers"),
        ("chat: raw\nsolver: {code_x: a}", "unknown task kinds code_x"),
        ("chat: raw\nsolver: {code_o: 3}", "solver has to map names to template texts"),
        ("chat: raw\nwrappers: {answer: '{{ text'}", "template wrappers/answer, line 1"),
        ("chat: raw\nwrappers: {boxed: a}", "no wrapper"),
    ],
)
def test_a_damaged_template_file_is_refused_with_its_fault(tmp_path, content, message):
    path = tmp_path / "prompts.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        PromptSet.load(str(path))


def test_a_name_that_a_template_does_not_get_is_an_error(tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text("chat: raw\nwrappers: {answer: '{{ text }}'}\nsolver: {code_o: '{{ tusk.program }}'}")
    with pytest.raises(ValueError, match="template solver/code_o: 'tusk' is undefined"):
        PromptSet.load(str(path)).solver(task())


def test_sources_that_do_not_exist_are_refused():
    with pytest.raises(FileNotFoundError, match="neither builtin, upstream nor a file"):
        PromptSet.load("no/such.yaml")
    with pytest.raises(ImportError, match="needs an importable AZR checkout"):
        PromptSet.load("upstream")


def test_an_importable_checkout_gives_its_own_prompts(tmp_path, monkeypatch):
    package = tmp_path / "absolute_zero_reasoner" / "data_construction"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "prompts.py").write_text(UPSTREAM_PROMPTS)
    (package / "process_data.py").write_text(
        "import a_module_of_an_older_verl\ninstruction_following = 'Q: {}\\nAssistant: <think>'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.startswith("absolute_zero_reasoner")]:
        monkeypatch.delitem(sys.modules, name)
    prompts = PromptSet.load("upstream")
    asked = text(prompts.proposer(TaskKind.CODE_O, [task()], banned_words=["time"], num_inputs=3))
    assert asked.startswith("Q: code_o [{'snippet': ") and asked.endswith("['time'] [] 3\nAssistant: <think>")
    assert "a hint [('1', '2'), ('2', '3')]" in text(prompts.solver(induction()))
    assert f"code_o {PROGRAM} 41 42" in text(prompts.solver(task()))
