"""From a completion to a candidate task or an answer. Nothing is executed here.

Answer parts: with ``answer*`` extraction the text inside the last ``<answer>`` element, with ``boxed*`` the
last ``\\boxed{}`` with its shell. The format rule (`format_ok`) is judged apart from the content.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from azr_overrides.tasks import blocks, text_tools
from azr_overrides.tasks.composites import ENTRY, composite_fault
from azr_overrides.tasks.types import Answer, Candidate, Rejection, RejectReason, Task, TaskKind

_ANSWER_FORMAT = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
_OPEN_THINK = "<think>"
_CLOSE_THINK = "</think>"
_RENAME_LOCATIONS = ("not_first", "not_last", "any_first", "any_last")


@dataclass(frozen=True, slots=True)
class ParseOptions:
    """How completions are read. Defaults are AZR's; names follow its configuration."""

    extraction_type: str = "answer_conditional"  # prefix "answer" or "boxed"
    boxed_retry: bool = False  # without an answer element take the last box, else the whole text
    extract_code_block: bool = True  # look for a block inside a solver's answer
    format_reward: bool = True  # False: every answer counts as well-formed
    num_inputs: int = 10  # inputs of a code_f proposal
    reject_multiple_functions: bool = True
    reject_test_input_in_code: bool = False
    f_replace_location: str = "not_first"  # which function becomes ``f`` when none has that name
    code_location: str = "first"  # which program block counts: "first" or "last"
    remove_comments: bool = False
    remove_after_return: bool = False  # keep only top-level imports and definitions
    remove_print: bool = False

    def __post_init__(self) -> None:
        _answer_style(self.extraction_type)
        if self.f_replace_location not in _RENAME_LOCATIONS:
            choices = ", ".join(_RENAME_LOCATIONS)
            raise ValueError(f"f_replace_location is {self.f_replace_location!r}; choose one of {choices}")
        if self.code_location not in ("first", "last"):
            raise ValueError(f"code_location is {self.code_location!r}; choose first or last")
        if self.num_inputs < 2:
            raise ValueError(f"num_inputs is {self.num_inputs}; code_f needs 2: one to show and one to hide")

    @classmethod
    def from_config(cls, config) -> "ParseOptions":
        """From the composed configuration: ``reward_fn.*`` and ``azr.*``."""
        proposals = config.azr.reward.generation_reward_config
        return cls(
            extraction_type=config.reward_fn.extraction_type,
            boxed_retry=config.reward_fn.boxed_retry,
            extract_code_block=config.azr.reward.extract_code_block,
            format_reward=proposals.format_reward,
            num_inputs=config.azr.data_selection_strategy.num_inputs,
            reject_multiple_functions=proposals.reject_multiple_functions,
            reject_test_input_in_code=proposals.reject_test_input_in_code,
            f_replace_location=proposals.f_replace_location,
            code_location=proposals.code_location,
            remove_comments=proposals.remove_comments,
            remove_after_return=proposals.remove_after_return,
            remove_print=proposals.remove_print,
        )

    def without_format_rule(self) -> "ParseOptions":
        """For Monte Carlo estimates of a solve rate, where an answer counts whatever its wrapping."""
        return replace(self, format_reward=False)


def completion_text(prompt: str, response: str, splitter: str = "Assistant:") -> str:
    """What is scored: the response, preceded by the thinking tag that the prompt already opened.

    The tag is looked for behind the prompt's last ``splitter`` (anywhere in a prompt without one, as chat
    templates make them). The response itself is never split, so a model may write the splitter.
    """
    tail = prompt.rpartition(splitter)[2]
    _, tag, opened = tail.rpartition(_OPEN_THINK)
    prefix = tag + opened if tag and _CLOSE_THINK not in opened else ""
    return (prefix + response).strip()


def format_ok(completion: str, extraction_type: str) -> bool:
    """The format rule: ``<think>…</think> <answer>…</answer>`` from the start, or a balanced box anywhere.

    Raises ValueError for an unknown ``extraction_type``.
    """
    if _answer_style(extraction_type) == "answer":
        return _ANSWER_FORMAT.match(completion) is not None
    return blocks.last_box(completion) is not None


def extract_answer(completion: str, extraction_type: str, boxed_retry: bool = False) -> str:
    """The answer part of a completion, ``""`` when there is none.

    Raises ValueError for an unknown ``extraction_type``.
    """
    if _answer_style(extraction_type) == "boxed":
        return blocks.last_box(completion) or ""
    _, tag, rest = completion.rpartition("<answer>")
    if tag:
        return rest.partition("</answer>")[0].strip()
    if boxed_retry:
        return blocks.last_box(completion) or completion
    return ""


def extract_thought(completion: str) -> str:
    """The text of the last thinking element; the whole completion when there is none."""
    return completion.rpartition(_OPEN_THINK)[2].partition(_CLOSE_THINK)[0]


def parse_proposal(
    kind: TaskKind,
    completion: str,
    options: ParseOptions,
    *,
    reference: Task | None = None,
    composites: Sequence[str] = (),
) -> Candidate | Rejection:
    """Read a proposer's completion.

    Args:
        reference: the task whose program a code_f proposer was shown; required for code_f only.
        composites: sources of the helpers ``g_0``, ``g_1``, ... that the program has to call.
    """
    answer = extract_answer(completion, options.extraction_type, options.boxed_retry)
    if not answer:
        return Rejection(RejectReason.NO_ANSWER, f"no {_answer_style(options.extraction_type)} part")
    return parse_proposal_body(kind, answer, options, reference=reference, composites=composites)


def parse_proposal_body(
    kind: TaskKind,
    text: str,
    options: ParseOptions,
    *,
    reference: Task | None = None,
    composites: Sequence[str] = (),
) -> Candidate | Rejection:
    """Like `parse_proposal` for a text that is all answer, as AZR reads completions in its seeding stage."""
    if kind is TaskKind.CODE_F:
        if reference is None:
            raise ValueError("a code_f proposal needs the reference whose program the proposer was shown")
        return _parse_induction(text, options, reference)
    program = _parse_program(text, options)
    if isinstance(program, Rejection):
        return program
    inputs = blocks.labelled_blocks(text, "input")
    argument_list = inputs[0] if inputs else blocks.commented_value(text, "input")
    if argument_list is None:
        return Rejection(RejectReason.NO_INPUT, "no input block")
    original = ""
    if composites:
        if fault := composite_fault(program, len(composites)):
            return Rejection(RejectReason.BAD_COMPOSITE, fault)
        original, program = program, "\n".join((*composites, program))
    return Candidate(
        kind=kind,
        program=program,
        inputs=(argument_list.strip(),),
        imports=text_tools.collect_imports(program),
        original_program=original,
        composites=tuple(composites),
    )


def parse_answer(kind: TaskKind, completion: str, options: ParseOptions) -> Answer:
    """Read a solver's completion. A code_f answer without a program block is not well-formed."""
    text = extract_answer(completion, options.extraction_type, options.boxed_retry)
    well_formed = not options.format_reward or format_ok(completion, options.extraction_type)
    if kind is TaskKind.CODE_F:
        programs = blocks.program_blocks(text)
        return Answer(programs[-1], well_formed) if programs else Answer("", False)
    if options.extract_code_block:
        text = extract_block(text, "input" if kind is TaskKind.CODE_I else "output")
    return Answer(text, well_formed)


def extract_block(answer: str, label: str) -> str:
    """The predicted ``input`` or ``output`` inside an answer.

    It is the last match of the first pattern that occurs: a fenced block, a comment (``# Input:``), a call
    (``input(...)``), an element (``<input>``), the words "the input is …". Otherwise it is the whole answer,
    without the shell of a box.
    """
    if found := blocks.labelled_blocks(answer, label):
        return found[-1]
    if (commented := blocks.commented_value(answer, label)) is not None:
        return commented
    for found in (
        blocks.call_arguments(answer, label),
        blocks.tagged_values(answer, label),
        re.findall(rf"the {label} is:?[ \t]*(\S.*?)\.?[ \t]*$", answer, re.IGNORECASE | re.MULTILINE),
    ):
        if found:
            return found[-1]
    return blocks.box_content(answer)


def _answer_style(extraction_type: str) -> str:
    for style in ("answer", "boxed"):
        if extraction_type.startswith(style):
            return style
    raise ValueError(f"extraction_type is {extraction_type!r}; it has to start with 'answer' or 'boxed'")


def _parse_program(text: str, options: ParseOptions) -> str | Rejection:
    programs = blocks.program_blocks(text)
    if not programs:
        return Rejection(RejectReason.NO_PROGRAM, "no program block")
    program = programs[0 if options.code_location == "first" else -1]
    functions = text_tools.function_names(program)
    if not functions:
        return Rejection(RejectReason.NO_FUNCTION, "the program defines no function")
    if options.reject_multiple_functions and len(functions) > 1:
        return Rejection(RejectReason.MULTIPLE_FUNCTIONS, f"defines {', '.join(functions)}"[:200])
    if options.reject_test_input_in_code and text_tools.contains_test_code(program):
        return Rejection(RejectReason.TEST_CODE, "the program seems to contain its own test")
    if ENTRY not in functions:
        chosen = functions[0 if options.f_replace_location in ("not_first", "any_first") else -1]
        program = text_tools.rename_function(program, chosen, ENTRY)
    if options.remove_comments:
        program = text_tools.remove_comments(program)
    if options.remove_after_return:
        program = text_tools.keep_definitions(program)
    if options.remove_print:
        program = text_tools.remove_prints(program)
    return program


def _parse_induction(text: str, options: ParseOptions, reference: Task) -> Candidate | Rejection:
    inputs = blocks.labelled_blocks(text, "input")
    if len(inputs) < options.num_inputs:
        return Rejection(RejectReason.NO_INPUT, f"{len(inputs)} input blocks instead of {options.num_inputs}")
    message = _message(text)
    if message is None:
        return Rejection(RejectReason.NO_MESSAGE, "no message block")
    return Candidate(
        kind=TaskKind.CODE_F,
        program=reference.program,
        inputs=tuple(argument_list.strip() for argument_list in inputs[-options.num_inputs :]),
        imports=reference.imports,
        message=message,
        original_program=reference.original_program,
        composites=reference.composites,
    )


def _message(text: str) -> str | None:
    found = blocks.labelled_blocks(text, "message") or blocks.tagged_values(text, "message")
    return (found[0] if found else blocks.commented_value(text, "message") or "").strip() or None
