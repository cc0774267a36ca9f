"""From a completion to the program that is graded."""

import ast

from eval.extract import code_block
from eval.prompts.template import AnswerStyle
from eval.types import Problem, Profile

_MAX_LINES_TO_SANITIZE = 200  # the sanitiser tries every pair of lines


def program_of(problem: Problem, text: str, style: AnswerStyle, profile: Profile) -> str:
    """The program in a completion; "" if there is none.

    For HumanEval+ and MBPP+ evalplus' sanitiser cleans it; profile ``fixed`` leaves a block that parses as it is and
    puts the imports of the problem's own text before it.
    """
    if style is AnswerStyle.CODE_COMPLETION:
        program = f"{problem.question}\n{text}" if text.strip() else ""
    elif profile is Profile.PARITY and problem.benchmark != "livecodebench":
        program = text
    else:
        block = code_block(text)
        program = block if block is not None else text
    if not program.strip() or problem.benchmark == "livecodebench":
        return program if program.strip() else ""
    if profile is Profile.FIXED and _parses(program):
        return _imports(problem.question) + program
    if program.count("\n") > _MAX_LINES_TO_SANITIZE:
        return program
    from eval.code.evalplus_grader import sanitized

    try:
        return sanitized(program, problem.payload["entry_point"])
    except RecursionError:
        return program


def _parses(program: str) -> bool:
    try:
        ast.parse(program)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True


def _imports(question: str) -> str:
    lines = [line for line in question.splitlines() if line.startswith(("import ", "from "))]
    return "".join(f"{line}\n" for line in lines)
