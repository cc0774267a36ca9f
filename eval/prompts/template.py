"""What a prompt template is, and how it is rendered."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eval.types import Problem, UsageError


class AnswerStyle(StrEnum):
    """Where the answer stands in a completion."""

    MATH = "math"  # answer block, box or stated answer
    CODE_COMPLETION = "code_completion"  # the completion goes on where the prompt ends
    CODE_BLOCK = "code_block"  # a fenced block, or the whole text without one


END_OF_TEXT = ("</s>", "<|im_end|>", "<|endoftext|>")


@dataclass(frozen=True, slots=True)
class Template:
    """One way to ask.

    ``text`` holds ``{question}``, and for LiveCodeBench ``{format}``. With ``chat`` it is the user's message and the
    tokenizer's chat template is applied, ``system`` before it and ``prefill`` as the start of the answer.
    """

    name: str
    text: str
    answer: AnswerStyle
    max_tokens: int
    stop: tuple[str, ...] = END_OF_TEXT
    chat: bool = False
    system: str = ""
    prefill: str = ""
    context: int = 0  # tokens of prompt and completion together; 0: the model's limit
    starter_format: str = ""  # LiveCodeBench: how {format} reads when the problem has starter code
    stdin_format: str = ""  # ... and when the program reads standard input
    published: str = ""  # where this exact protocol was published; "" for our own

    def question_of(self, problem: Problem) -> str:
        fields = {"question": problem.question, "format": ""}
        starter = problem.payload.get("starter_code")
        if starter is not None:
            fields["format"] = self.starter_format.replace("{starter}", starter) if starter else self.stdin_format
        text = self.text
        for name, value in fields.items():
            text = text.replace("{" + name + "}", value)
        return text


def render(template: Template, problem: Problem, tokenizer: Any) -> tuple[str, bool]:
    """The prompt's text, and whether the tokenizer may add its own special tokens to it.

    Raises UsageError if the template needs a chat template that the tokenizer lacks.
    """
    question = template.question_of(problem)
    if not template.chat:
        return question, True
    if not getattr(tokenizer, "chat_template", None):
        raise UsageError(
            f"prompt template {template.name!r} needs a chat template and this tokenizer has none; "
            f"pass --base-kind base (or --member-kind base)"
        )
    messages = [{"role": "system", "content": template.system}] if template.system else []
    messages.append({"role": "user", "content": question})
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return prompt + template.prefill, False
