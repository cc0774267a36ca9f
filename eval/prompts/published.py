"""The protocols of published numbers (profile ``parity``), quoted: a score depends on every character of them.

Sources: AZR's evaluation code (MIT licence) at the commit in ``data/registry.py``, evalplus 0.3.1 (Apache-2.0).
"""

from eval.prompts.template import END_OF_TEXT, AnswerStyle, Template

_AZR_SOURCE = "AZR evaluation/math_eval/eval/utils.py"
_AZR_LCB_SOURCE = "AZR evaluation/code_eval/coding/LiveCodeBench"
_EVALPLUS_SOURCE = "evalplus 0.3.1 codegen"
_MATH_TOKENS = 16_000
_EVALPLUS_TOKENS = 768
_EVALPLUS_CONTEXT = 2_048
_LCB_TOKENS = 8_096

_CONVERSATION = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant solves it. The assistant "
    "first thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning "
    "process and answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., <think> "
    "reasoning process here </think> <answer> answer here </answer>. "
)
_REASON = "Please reason step by step, and put your final answer within \\boxed{}."
_EVALPLUS_EOS = ("<|endoftext|>", "<|endofmask|>", "</s>", "\nif __name__", "\ndef main(", "\nprint(")

AZR = Template(
    "azr",
    _CONVERSATION + "User: {question}\nAssistant:",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    published=_AZR_SOURCE,
)
AZR_BOXED = Template(
    "azr_boxed",
    _CONVERSATION
    + "And your final answer will be extracted automatically by the \\boxed{} tag. User: {question}\nAssistant:",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    published=_AZR_SOURCE,
)
QWEN_BOXED = Template(
    "qwen-boxed",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{question}\n"
    + _REASON
    + "<|im_end|>\n<|im_start|>assistant\n",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    (*END_OF_TEXT, "assistant", "user", "_end", "_start"),
    published=_AZR_SOURCE,
)
QWEN_MATH_COT = Template(
    "qwen25-math-cot",
    "<|im_start|>system\n" + _REASON + "<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n",
    AnswerStyle.MATH,
    _MATH_TOKENS,
    (*END_OF_TEXT, "assistant", "user", "_end", "_start"),
    published=_AZR_SOURCE,
)
EVALPLUS_HUMANEVAL = Template(
    "evalplus-humaneval",
    "{question}\n",
    AnswerStyle.CODE_COMPLETION,
    _EVALPLUS_TOKENS,
    (*_EVALPLUS_EOS, "\ndef ", "\nclass ", "\nimport ", "\nfrom ", "\nassert "),
    context=_EVALPLUS_CONTEXT,
    published=_EVALPLUS_SOURCE,
)
EVALPLUS_MBPP = Template(
    "evalplus-mbpp",
    "{question}\n",
    AnswerStyle.CODE_COMPLETION,
    _EVALPLUS_TOKENS,
    (*_EVALPLUS_EOS, '\n"""', "\nassert"),
    context=_EVALPLUS_CONTEXT,
    published=_EVALPLUS_SOURCE,
)
EVALPLUS_CHAT = Template(
    "evalplus-chat",
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
    "```\n{question}\n```\n",
    AnswerStyle.CODE_BLOCK,
    _EVALPLUS_TOKENS,
    (*_EVALPLUS_EOS, "\n```\n"),
    chat=True,
    prefill="Below is a Python script with a self-contained function that solves the problem and passes corresponding "
    "tests:\n```python\n",
    context=_EVALPLUS_CONTEXT,
    published=_EVALPLUS_SOURCE,
)
LCB_AZR = Template(
    "lcb-azr-published",
    _CONVERSATION + "User: \n# Task: You will be given a question (problem specification) and will generate a correct "
    "Python program that matches the specification and passes all tests. Your final answer should be wrapped in "
    "```python``` tags.\n\nQuestion: {question}\n\n{format}Assistant: <think>",
    AnswerStyle.CODE_BLOCK,
    _LCB_TOKENS,
    (),
    starter_format="You will use the following starter code to write the solution to the problem and enclose your "
    "code within delimiters.\n```python\n{starter}\n```\n\n",
    stdin_format="Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on "
    "the sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it "
    "reads the inputs, runs the algorithm and writes output to STDOUT.\n```python\n# YOUR CODE HERE\n```\n\n",
    published=_AZR_LCB_SOURCE,
)
