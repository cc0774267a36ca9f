"""Our own prompts (profile ``fixed``), one for each model kind and sort of benchmark."""

import yaml

from azr_overrides.tasks.prompts import TEMPLATE_FOLDER
from eval.prompts.template import END_OF_TEXT, AnswerStyle, Template

_MATH_TOKENS = 16_000
_CODE_TOKENS = 2_048
_LCB_TOKENS = 8_096


def _training_wrapper(text: str) -> str:
    """The wrapper that adapters of this project were trained with; it ends with an open ``<think>``."""
    templates = yaml.safe_load((TEMPLATE_FOLDER / "azr.yaml").read_text())
    return templates["wrappers"]["answer"].replace("{{ text }}", text)


_STARTER = "Complete this starter code, keeping its names and signature:\n```python\n{starter}\n```"
_STDIN = "The program reads its input from standard input and prints its answer to standard output, nothing else."
_AZR_STOP = (*END_OF_TEXT, "</answer>")

MATH_BASE = Template(
    "math-base",
    "Problem:\n{question}\n\nThe solution below works step by step and ends with the answer in \\boxed{}.\n\n"
    "Solution:\n",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    (*END_OF_TEXT, "\nProblem:"),
)
MATH_CHAT = Template(
    "math-chat",
    "{question}\n\nWork through this step by step, then write only the final answer inside \\boxed{}.",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    chat=True,
)
MATH_AZR = Template(
    "math-azr",
    _training_wrapper("{question}\nWrite the final answer inside \\boxed{}."),
    AnswerStyle.MATH,
    _MATH_TOKENS,
    _AZR_STOP,
)
CODE_BASE = Template(
    "code-base",
    "{question}\n",
    AnswerStyle.CODE_COMPLETION,
    _CODE_TOKENS,
    (*END_OF_TEXT, "\nif __name__", "\nprint(", '\n"""', "\nassert"),
)
CODE_CHAT = Template(
    "code-chat",
    "Solve this task with one complete Python program in a fenced ```python block. Keep the function's name and "
    "parameters, and include every import.\n\n{question}",
    AnswerStyle.CODE_BLOCK,
    _CODE_TOKENS,
    chat=True,
)
CODE_AZR = Template(
    "code-azr",
    _training_wrapper(
        "Solve this task in Python. Keep the function's name and parameters, and include every import. "
        "Put the complete program into a fenced ```python block.\n\n{question}"
    ),
    AnswerStyle.CODE_BLOCK,
    _LCB_TOKENS,
    _AZR_STOP,
)
LCB_BASE = Template(
    "lcb-base",
    "Problem:\n{question}\n\n{format}\n\nA complete Python solution:\n```python\n",
    AnswerStyle.CODE_BLOCK,
    _LCB_TOKENS,
    (*END_OF_TEXT, "\n```"),
    starter_format=_STARTER,
    stdin_format=_STDIN,
)
LCB_CHAT = Template(
    "lcb-chat",
    "Solve this programming problem in Python.\n\n{question}\n\n{format}\n\n"
    "Give the complete program in one fenced ```python block.",
    AnswerStyle.CODE_BLOCK,
    _LCB_TOKENS,
    chat=True,
    starter_format=_STARTER,
    stdin_format=_STDIN,
)
LCB_AZR = Template(
    "lcb-azr",
    _training_wrapper(
        "Solve this programming problem in Python.\n\n{question}\n\n{format}\n\n"
        "Give the complete program in one fenced ```python block."
    ),
    AnswerStyle.CODE_BLOCK,
    _LCB_TOKENS,
    _AZR_STOP,
    starter_format=_STARTER,
    stdin_format=_STDIN,
)
