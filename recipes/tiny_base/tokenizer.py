"""The tokenizer of the tiny base: words of the small language, integers 0 to 99, and single ASCII characters.

Every token of several characters is an *added* token, matched leftmost-longest before any pre-tokenizer; the
rest is byte-level BPE without merges. Nothing may depend on the pre-tokenizer: ``AutoTokenizer`` replaces the
one stored in a folder whose model type is ``qwen2`` by Qwen2's own.
"""

import argparse
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from recipes.tiny_base.documents import OPERATION_NAMES

PAD, START, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, EOS)
QUESTIONS = (
    "Propose a task.\n",
    "Propose ",
    " inputs.\n",
    "Predict the output.\n",
    "Find an input.\n",
    "Write the function.\n",
)
FENCES = ("```python\n", "```input\n", "```output\n", "```message\n", "\n```\n")
TAGS = ("user\n", "assistant\n", "<think>\n", "</think>\n", "<answer>\n", "</answer>")
KEYWORDS = (
    *(
        "def f(",
        "):\n",
        ":\n",
        "        ",
        "    ",
        "return ",
        "if ",
        "else:\n",
        "elif ",
        "for ",
        " in ",
        "while ",
    ),
    *(
        " not in ",
        "not ",
        "break",
        "continue",
        "pass",
        " if ",
        " for ",
        " else ",
        " and ",
        " or ",
        "True",
        "False",
        "None",
    ),
)
OPERATORS = (
    *(" = ", " += ", " -= ", " *= ", " + ", " - ", " * ", " // ", " % ", " ** "),
    *(" == ", " != ", " > ", " < ", " >= ", " <= "),
)
CALLS = (
    *("len(", "sum(", "sorted(", "max(", "min(", "abs(", "str(", "int(", "range(", "list(", "set("),
    *(
        ".count(",
        ".append(",
        ".upper()",
        ".lower()",
        ".replace(",
        ".index(",
        ".join(",
        "[::-1]",
        "reverse=True",
    ),
)
TRACE = (", ", " : ", "\n", "end\n", "goal ", " ok\n", " no\n")
MESSAGE = ("int", "list", "str", *(f" {name}" for name in OPERATION_NAMES))
INTEGERS = tuple(map(str, range(100)))
CHARACTERS = tuple(map(chr, range(32, 127)))

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer with its chat template; lossless for printable ASCII and newlines, drops the rest."""
    groups = (
        SPECIAL,
        QUESTIONS,
        FENCES,
        TAGS,
        KEYWORDS,
        OPERATORS,
        CALLS,
        TRACE,
        MESSAGE,
        INTEGERS,
        CHARACTERS,
    )
    tokens = list(dict.fromkeys(token for group in groups for token in group))
    byte_level_space = "\u0120"
    vocabulary = {byte_level_space if token == " " else token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    words = [token for token in tokens if token not in SPECIAL and (len(token) > 1 or token == "\n")]
    tokenizer.add_tokens([AddedToken(word, normalized=False, special=False) for word in words])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=None,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def token_id(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    """Id of a single token. Raises ``KeyError`` when the vocabulary lacks it."""
    return tokenizer.get_vocab()[token]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the tiny base's tokenizer into a folder.")
    parser.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    build_tokenizer().save_pretrained(arguments.folder)


if __name__ == "__main__":
    main()
