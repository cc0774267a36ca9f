"""Reading completions: what AZR's recorded cases do not cover."""

import pytest

from azr_overrides.tasks.blocks import call_arguments, last_box
from azr_overrides.tasks.parsing import (
    ParseOptions,
    completion_text,
    extract_block,
    format_ok,
    parse_answer,
    parse_proposal,
    parse_proposal_body,
)
from azr_overrides.tasks.text_tools import keep_definitions, remove_comments, remove_prints, shorten
from azr_overrides.tasks.types import Candidate, Rejection, RejectReason, Task, TaskKind

PROGRAM = "```python\ndef f(x):\n    return x\n```"


def proposal(text, kind=TaskKind.CODE_O, **options):
    return parse_proposal(kind, f"<think>t</think><answer>{text}</answer>", ParseOptions(**options))


def reason(outcome):
    assert isinstance(outcome, Rejection)
    return outcome.reason


@pytest.mark.parametrize(
    "prompt",
    [
        "preamble\nUser: do it\nAssistant: <think>",
        "<|im_start|>user\ndo it<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "User: say Assistant: now\nAssistant: <think>",
        "Think between <think> and </think>.\nUser: do it\nAssistant: <think>",
    ],
)
def test_an_opened_thinking_tag_belongs_to_the_completion(prompt):
    assert format_ok(completion_text(prompt, "why</think> <answer>1</answer>"), "answer_conditional")


def test_a_prompt_without_an_open_tag_adds_nothing():
    for prompt in ("<|im_start|>assistant\n", "Write <think> and </think>.\nAssistant:", ""):
        assert completion_text(prompt, " <think>a</think> ") == "<think>a</think>"


def test_a_splitter_inside_the_response_does_not_cut_it():
    text = completion_text(
        "User: x\nAssistant: <think>", "he said Assistant: no</think><answer>1</answer> Assistant: bye"
    )
    assert format_ok(text, "answer_conditional")
    assert parse_answer(TaskKind.CODE_O, text, ParseOptions()).text == "1"


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("nothing", TaskKind.CODE_O, RejectReason.NO_PROGRAM),
        ("", TaskKind.CODE_O, RejectReason.NO_ANSWER),
        (PROGRAM, TaskKind.CODE_I, RejectReason.NO_INPUT),
        ("```python\nx = 1\n```\n```input\n1\n```", TaskKind.CODE_E, RejectReason.NO_FUNCTION),
        (
            "```python\ndef a(): 0\ndef b(): 0\n```\n```input\n1\n```",
            TaskKind.CODE_O,
            RejectReason.MULTIPLE_FUNCTIONS,
        ),
    ],
)
def test_each_fault_of_a_proposal_has_its_reason(text, kind, expected):
    assert reason(proposal(text, kind)) is expected


def test_test_code_is_refused_on_request():
    text = "```python\ndef f(x):\n    return x\nassert f(1) == 1\n```\n```input\n1\n```"
    assert isinstance(proposal(text), Candidate)
    assert reason(proposal(text, reject_test_input_in_code=True)) is RejectReason.TEST_CODE


def test_induction_takes_the_reference_program_and_needs_a_message():
    reference = Task("id", TaskKind.CODE_O, "import math\ndef f(x):\n    return x", ("1",), ("1",), ("import math",))
    inputs = "```input\n1\n```\n```input\n2\n```"
    options = ParseOptions(num_inputs=2)
    for text, expected in ((inputs, RejectReason.NO_MESSAGE), ("```message\nm\n```", RejectReason.NO_INPUT)):
        outcome = parse_proposal_body(TaskKind.CODE_F, text, options, reference=reference)
        assert reason(outcome) is expected
    outcome = parse_proposal_body(TaskKind.CODE_F, inputs + "\n```message\n  hint\n```", options, reference=reference)
    assert outcome == Candidate(TaskKind.CODE_F, reference.program, ("1", "2"), reference.imports, "hint")
    with pytest.raises(ValueError, match="needs the reference"):
        parse_proposal_body(TaskKind.CODE_F, inputs, options)


def test_blocks_of_values_are_never_taken_for_the_program():
    text = "```input\n4\n```\n" + PROGRAM + "\n```output\n4\n```"
    for location in ("first", "last"):
        candidate = proposal(text, code_location=location)
        assert isinstance(candidate, Candidate)
        assert (candidate.program, candidate.inputs) == ("def f(x):\n    return x", ("4",))


def test_renaming_leaves_an_existing_entry_and_attributes_alone():
    text = "```python\ndef g(x):\n    return x\ndef f(x):\n    return g(x)\n```\n```input\n1\n```"
    candidate = proposal(text, reject_multiple_functions=False)
    assert isinstance(candidate, Candidate) and "def g(x)" in candidate.program
    text = "```python\ndef count(x):\n    return x.count(1)\n```\n```input\n[1]\n```"
    candidate = proposal(text)
    assert isinstance(candidate, Candidate)
    assert candidate.program == "def f(x):\n    return x.count(1)"


def test_composite_helpers_are_prepended_and_the_original_kept():
    helper = "def g_0(x):\n    return x + 1"
    text = "<think>t</think><answer>```python\ndef f(x):\n    return g_0(x)\n```\n```input\n1\n```</answer>"
    candidate = parse_proposal(TaskKind.CODE_O, text, ParseOptions(), composites=[helper])
    assert isinstance(candidate, Candidate)
    assert candidate.program == helper + "\ndef f(x):\n    return g_0(x)"
    assert candidate.original_program == "def f(x):\n    return g_0(x)"
    assert candidate.composites == (helper,)
    refused = parse_proposal(TaskKind.CODE_O, text.replace("g_0(x)", "x"), ParseOptions(), composites=[helper])
    assert reason(refused) is RejectReason.BAD_COMPOSITE


def test_an_induction_answer_without_a_program_is_malformed_even_without_the_format_rule():
    text = "<think>a</think><answer>def f(x): return x</answer>"
    assert not parse_answer(TaskKind.CODE_F, text, ParseOptions()).well_formed
    assert not parse_answer(TaskKind.CODE_F, text, ParseOptions().without_format_rule()).well_formed


def test_the_format_rule_can_be_switched_off_for_estimates():
    options = ParseOptions()
    assert not parse_answer(TaskKind.CODE_O, "<answer>1</answer>", options).well_formed
    assert parse_answer(TaskKind.CODE_O, "<answer>1</answer>", options.without_format_rule()).well_formed


def test_boxed_answers_lose_their_shell_only_where_a_value_is_asked():
    options = ParseOptions(extraction_type="boxed_conditional")
    text = r"so \boxed{{'a': [1]}}"
    assert parse_answer(TaskKind.CODE_O, text, options).text == "{'a': [1]}"
    assert parse_answer(TaskKind.CODE_O, "\\boxed{```output\n7\n```}", options).text == "7"


def test_extraction_of_blocks_can_be_switched_off():
    text = "<think>a</think><answer>```output\n7\n```</answer>"
    assert parse_answer(TaskKind.CODE_O, text, ParseOptions(extract_code_block=False)).text == "```output\n7\n```"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("# Output: 3\nmore", "3\nmore"),
        ("output((1, (2, 3)))", "(1, (2, 3))"),
        ("the output is 9.5.", "9.5"),
        ("the output is 1\nno, the output is [2]", "[2]"),
        ("<output>4", "4"),
        ("```output\n1\n``` or ```output\n2\n```", "2"),
    ],
)
def test_answers_are_found_by_the_first_pattern_that_occurs(answer, expected):
    assert extract_block(answer, "output") == expected


def test_unbalanced_brackets_are_not_calls_or_boxes():
    assert call_arguments("input(1, (2", "input") == []
    assert last_box(r"\boxed{1} and \boxed{2") == r"\boxed{1}"
    assert last_box(r"\boxed 1") is None


@pytest.mark.parametrize("tool", [remove_comments, keep_definitions, remove_prints])
def test_rewriting_leaves_text_alone_that_is_no_program(tool):
    for text in ("def f(x", "x = " + "(" * 300 + ")" * 300, "\0"):
        assert tool(text) == text


def test_rewriting_keeps_blank_lines_inside_strings():
    program = 'def f(x):\n    return f"""a\n\n{x}"""'
    namespace = {}
    exec(keep_definitions(program), namespace)  # our own text
    assert namespace["f"](1) == "a\n\n1"


def test_removed_prints_leave_a_valid_body():
    assert remove_prints("def f(x):\n    if x:\n        print(x)\n    return x") == (
        "def f(x):\n    if x:\n        pass\n    return x"
    )


def test_a_repeated_opening_bracket_costs_one_pass():
    text = "input(" * 200_000
    assert call_arguments(text, "input") == []
    assert call_arguments(text + "7)", "input") == ["7"]
    assert last_box("\\boxed{" * 200_000) is None


@pytest.mark.parametrize("label", ["python", "Python3", "py", ""])
def test_labels_of_python_are_not_part_of_the_program(label):
    candidate = proposal(f"```{label}\ndef f(x):\n    return x\n```\n```input\n1\n```")
    assert isinstance(candidate, Candidate) and candidate.program == "def f(x):\n    return x"


def test_long_text_is_shown_by_its_ends():
    assert shorten("a" * 400) == "a" * 400
    assert shorten("a" * 300 + "b" * 300) == "a" * 200 + "..." + "b" * 200


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extraction_type": "none"}, "start with 'answer' or 'boxed'"),
        ({"f_replace_location": "middle"}, "choose one of"),
        ({"code_location": "middle"}, "choose first or last"),
        ({"num_inputs": 1}, "needs 2"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        ParseOptions(**options)
