"""Prompts of an AZR checkout that is importable at run time (``azr.prompt_source=upstream``)."""

import ast
import importlib
import importlib.util
from pathlib import Path

from azr_overrides.tasks.prompts import PromptSet, visible_pairs
from azr_overrides.tasks.text_tools import shorten
from azr_overrides.tasks.types import Task, TaskKind

_PACKAGE = "absolute_zero_reasoner.data_construction"
_WRAPPERS = {"answer": "instruction_following", "boxed": "boxed_instruction"}


class UpstreamPrompts(PromptSet):
    """Calls AZR's prompt functions and fills its wrapper text.

    The wrapper is a constant of a module that imports parts of verl which later versions do not have, so it
    is read from the source instead of being imported.
    """

    chat = "raw"

    def __init__(self, extraction_type: str) -> None:
        style = extraction_type.partition("_")[0]
        if style not in _WRAPPERS:
            raise ValueError(f"AZR has no wrapper for reward_fn.extraction_type={extraction_type}")
        try:
            self._prompts = importlib.import_module(f"{_PACKAGE}.prompts")
            self._wrapper = _constant(f"{_PACKAGE}.process_data", _WRAPPERS[style])
        except ImportError as error:
            raise ImportError(
                "azr.prompt_source=upstream needs an importable AZR checkout: put it on PYTHONPATH, "
                f"or choose builtin ({error})"
            ) from error

    def _proposer_text(self, kind: TaskKind, **context) -> str:
        return self._prompts.get_code_problem_generator_prompt(
            problem_type=kind.value,
            reference_snippets=[_reference(task) for task in context["references"]],
            banned_keywords=context["banned_words"],
            banned_assertion_keywords=context["banned_keywords"],
            composite_functions=context["composites"],
            remove_after_return=context["remove_after_return"],
            num_inputs=context["num_inputs"],
            remove_input_from_snippet=context["remove_input_from_snippet"],
        )

    def _solver_text(self, task: Task) -> str:
        if task.kind is TaskKind.CODE_F:
            return self._prompts.get_code_problem_predictor_prompt(
                problem_type=task.kind.value,
                snippet=task.program,
                message=task.message,
                input_output_pairs=[tuple(pair) for pair in visible_pairs(task)],
            )
        return self._prompts.get_code_problem_predictor_prompt(
            problem_type=task.kind.value,
            snippet=task.program,
            input_args=task.inputs[0],
            output=task.outputs[0],
        )

    def _wrap(self, text: str) -> str:
        return self._wrapper.format(text)


def _reference(task: Task) -> dict[str, str]:
    return {"snippet": task.program, "input": task.inputs[0], "output": shorten(task.outputs[0])}


def _constant(module: str, name: str) -> str:
    """The string that ``module`` assigns to ``name``, read from its source.

    Raises ImportError if there is no such module or constant.
    """
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ImportError(f"no module {module}")
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == name for target in node.targets):
            return str(ast.literal_eval(node.value))
    raise ImportError(f"{module} does not define {name}")
