"""Prompts for proposers and solvers. Their text is data: a YAML file of Jinja templates
(``prompt_templates/``).

A prompt set makes chat messages. ``chat`` says how they become tokens: ``template`` applies the tokenizer's
chat template, ``raw`` joins the contents with newlines (`RAW_CHAT_TEMPLATE`), as AZR does for base models.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import yaml

from azr_overrides.tasks.text_tools import shorten
from azr_overrides.tasks.types import Task, TaskKind
from azr_overrides.tasks.verification import hidden_split

TEMPLATE_FOLDER = Path(__file__).parent / "prompt_templates"
CHAT_STYLES = ("raw", "template")
RAW_CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{{ '\n' if not loop.last }}{% endfor %}"

Messages = list[dict[str, str]]


class Pair(NamedTuple):
    """One call of a program: its argument list and the canonical text of its value."""

    input: str
    output: str


def visible_pairs(task: Task) -> list[Pair]:
    """The pairs of a code_f task that its solver sees."""
    pairs = [Pair(*pair) for pair in zip(task.inputs, task.outputs, strict=True)]
    return pairs[: hidden_split(len(pairs))]


class PromptSet(ABC):
    """Makes the messages for one answer style. Use `load`."""

    chat: str  # "raw" or "template"

    @classmethod
    def load(cls, source: str, extraction_type: str = "answer_conditional", chat: str | None = None) -> "PromptSet":
        """A prompt set by ``azr.prompt_source``.

        Args:
            source: ``builtin``, ``upstream`` (the prompts of an importable AZR checkout), or the path of a
                YAML file.
            extraction_type: its prefix, ``answer`` or ``boxed``, chooses the wrapper.
            chat: ``raw`` or ``template``; None for what the prompt set says.

        Raises:
            FileNotFoundError: no such template file.
            ImportError: ``upstream`` without an importable AZR checkout.
            ValueError: the template file is not well-formed, or has no wrapper for ``extraction_type``.
        """
        if chat not in (None, *CHAT_STYLES):
            raise ValueError(f"azr.chat is {chat!r}; choose raw, template or null")
        prompts = _load(source, extraction_type)
        prompts.chat = chat or prompts.chat
        return prompts

    def proposer(
        self,
        kind: TaskKind,
        references: Sequence[Task],
        *,
        banned_words: Sequence[str] = (),
        banned_keywords: Sequence[str] = (),
        num_inputs: int = 10,
        composites: Sequence[str] = (),
        remove_input_from_snippet: bool = False,
        remove_after_return: bool = False,
    ) -> Messages:
        """Messages that ask for one task of ``kind``.

        Args:
            references: earlier tasks to show; for code_f exactly the one whose program gets inputs.
            banned_words: modules and names that the program may not use.
            banned_keywords: statements that it may not use (shown for code_e).
            num_inputs: inputs asked for (code_f).
            composites: sources of helpers ``g_0``, ``g_1``, ... that the program has to call.
            remove_input_from_snippet: ask for no assignment of the input inside the program.
            remove_after_return: whether top-level statements will be cut from the program.
        """
        if kind is TaskKind.CODE_F and len(references) != 1:
            raise ValueError(f"a code_f proposer is shown exactly one program, not {len(references)}")
        return self._messages(
            self._proposer_text(
                kind,
                references=list(references),
                banned_words=list(dict.fromkeys(banned_words)),
                banned_keywords=list(dict.fromkeys(banned_keywords)),
                num_inputs=num_inputs,
                composites=list(composites),
                remove_input_from_snippet=remove_input_from_snippet,
                remove_after_return=remove_after_return,
            )
        )

    def solver(self, task: Task) -> Messages:
        """Messages that ask for an answer to ``task``."""
        return self._messages(self._solver_text(task))

    def _messages(self, text: str) -> Messages:
        return [{"role": "user", "content": self._wrap(text)}]

    @abstractmethod
    def _proposer_text(self, kind: TaskKind, **context) -> str: ...

    @abstractmethod
    def _solver_text(self, task: Task) -> str: ...

    @abstractmethod
    def _wrap(self, text: str) -> str: ...


def _load(source: str, extraction_type: str) -> PromptSet:
    if source == "upstream":
        from azr_overrides.tasks.upstream_prompts import UpstreamPrompts

        return UpstreamPrompts(extraction_type)
    path = TEMPLATE_FOLDER / "azr.yaml" if source == "builtin" else Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"azr.prompt_source is {source!r}: neither builtin, upstream nor a file")
    return TemplatePrompts(path, extraction_type)


class TemplatePrompts(PromptSet):
    """Prompts from a YAML file; its layout is described at the top of ``prompt_templates/azr.yaml``."""

    def __init__(self, path: Path, extraction_type: str) -> None:
        self._path = path
        spec = _read(path)
        self.chat = spec["chat"]
        style = extraction_type.partition("_")[0]
        if style not in spec["wrappers"]:
            raise ValueError(f"{path}: no wrapper for reward_fn.extraction_type={extraction_type}")
        self._wrapper = f"wrappers/{style}"
        sources = dict(spec["partials"])
        for section in ("wrappers", "proposer", "solver"):
            sources |= {f"{section}/{name}": text for name, text in spec[section].items()}
        self._environment = jinja2.Environment(
            loader=jinja2.DictLoader(sources),
            undefined=jinja2.StrictUndefined,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self._environment.filters["shorten"] = shorten
        for name in sources:
            try:
                self._environment.get_template(name)
            except jinja2.TemplateSyntaxError as error:
                raise ValueError(f"{path}: template {name}, line {error.lineno}: {error.message}") from error

    def _proposer_text(self, kind: TaskKind, **context) -> str:
        return self._render(f"proposer/{kind}", **context)

    def _solver_text(self, task: Task) -> str:
        pairs = visible_pairs(task) if task.kind is TaskKind.CODE_F else []
        return self._render(f"solver/{task.kind}", task=task, pairs=pairs)

    def _wrap(self, text: str) -> str:
        return self._render(self._wrapper, text=text)

    def _render(self, name: str, **context) -> str:
        try:
            return self._environment.get_template(name).render(**context)
        except jinja2.TemplateNotFound as error:
            raise ValueError(f"{self._path}: no template {error.name}; is the kind in azr.problem_types?") from error
        except jinja2.UndefinedError as error:
            raise ValueError(f"{self._path}: template {name}: {error.message}") from error


def _read(path: Path) -> dict:
    """The file's content with every section present.

    Raises ValueError naming the file and the entry that is wrong.
    """
    try:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: not a YAML file: {error}") from error
    if not isinstance(spec, Mapping):
        raise ValueError(f"{path}: expected a mapping with chat, wrappers, proposer, solver")
    sections = ("wrappers", "partials", "proposer", "solver")
    if unknown := set(spec) - {"chat", *sections}:
        raise ValueError(f"{path}: unknown sections {', '.join(sorted(map(str, unknown)))}")
    if spec.get("chat") not in CHAT_STYLES:
        raise ValueError(f"{path}: chat is {spec.get('chat')!r}; choose raw or template")
    for section in sections:
        entries = spec.get(section) or {}
        if not isinstance(entries, Mapping) or not all(isinstance(text, str) for text in entries.values()):
            raise ValueError(f"{path}: {section} has to map names to template texts")
    for section in ("proposer", "solver"):
        if unknown := set(spec.get(section) or {}) - {kind.value for kind in TaskKind}:
            raise ValueError(f"{path}: {section} has unknown task kinds {', '.join(sorted(unknown))}")
    return {"chat": spec["chat"]} | {section: dict(spec.get(section) or {}) for section in sections}
