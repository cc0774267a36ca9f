"""Composite tasks: a proposer gets helper functions ``g_0``, ``g_1``, ... from earlier tasks and must call
them all.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from azr_overrides.tasks.complexity import parse
from azr_overrides.tasks.text_tools import rename_definition_and_calls
from azr_overrides.tasks.types import Task

ENTRY = "f"


def helper_name(index: int) -> str:
    return f"g_{index}"


def helper_sources(tasks: Sequence[Task]) -> tuple[str, ...]:
    """Programs of ``tasks`` with their entry function renamed to ``g_0``, ``g_1``, ... in order."""
    return tuple(
        rename_definition_and_calls(task.program, ENTRY, helper_name(index)) for index, task in enumerate(tasks)
    )


def composite_fault(program: str, count: int) -> str | None:
    """Why ``program`` breaks the rules for ``count`` assigned helpers, or None.

    ``f`` has to call every ``g_i``, which the program may not redefine at top level. A name that is passed to
    a helper by position has to be a parameter of ``f``, a plainly assigned name, or the target of a
    comprehension over such a name; any other expression is allowed only if it is a literal.
    """
    try:
        tree = parse(program)
    except ValueError as error:
        return str(error)
    names = {helper_name(index) for index in range(count)}
    if redefined := sorted(names & set(_top_level_names(tree))):
        return f"redefines {', '.join(redefined)}"
    entry = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY), None)
    if entry is None:
        return f"no top-level function {ENTRY}"
    calls = [
        node
        for node in ast.walk(entry)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    if uncalled := sorted(names - {call.func.id for call in calls if isinstance(call.func, ast.Name)}):
        return f"never calls {', '.join(uncalled)}"
    known = _names_in_scope(entry)
    for call in calls:
        for argument in call.args:
            if not _is_allowed_argument(argument, known):
                passed = ast.unparse(argument)[:40]
                return f"passes {passed!r} to {ast.unparse(call.func)}: neither a parameter nor a variable"
    return None


def _is_allowed_argument(node: ast.expr, known: set[str]) -> bool:
    if isinstance(node, ast.Starred):
        node = node.value
    return isinstance(node, ast.Constant) or (isinstance(node, ast.Name) and node.id in known)


def _top_level_names(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _names_in_scope(entry: ast.FunctionDef) -> set[str]:
    arguments = entry.args
    named = [
        *arguments.posonlyargs,
        *arguments.args,
        *arguments.kwonlyargs,
        arguments.vararg,
        arguments.kwarg,
    ]
    known = {argument.arg for argument in named if argument is not None}
    for node in ast.walk(entry):
        if isinstance(node, ast.Assign):
            known.update(target.id for target in node.targets if isinstance(target, ast.Name))
    for node in ast.walk(entry):
        if isinstance(node, ast.comprehension) and isinstance(node.target, ast.Name):
            source = node.iter
            if isinstance(source, ast.Name) and source.id in known:
                known.add(node.target.id)
    return known


@dataclass(frozen=True, slots=True)
class CompositeSchedule:
    """When proposers get helpers, and how many. Field names follow ``azr.data_selection_strategy``."""

    start_step: int = -1  # first step with helpers; never when negative or 0
    chance: float = 0.5  # probability that a proposal gets helpers
    n_min: int = -1
    n_max: int = -1
    grows: bool = False  # whether the four rules below apply
    n_growth_start: int = 101
    n_growth_interval: int = 50
    n_limit: int = 3
    chance_growth_start: int = 101
    chance_growth_interval: int = 50
    chance_growth: float = 0.01
    chance_limit: float = 0.8

    @classmethod
    def from_config(cls, selection) -> "CompositeSchedule":
        """From the node ``azr.data_selection_strategy``."""
        scheduler = selection.composite_scheduler
        return cls(
            start_step=selection.composite_start_step,
            chance=selection.composite_chance_initial if scheduler.enabled else selection.composite_chance,
            n_min=selection.composite_function_n_min,
            n_max=selection.max_programs_initial if scheduler.enabled else selection.composite_function_n_max,
            grows=scheduler.enabled,
            n_growth_start=scheduler.update_num_programs_start,
            n_growth_interval=scheduler.update_num_programs_interval,
            n_limit=scheduler.num_programs_max,
            chance_growth_start=scheduler.update_probability_start,
            chance_growth_interval=scheduler.update_probability_interval,
            chance_growth=scheduler.update_probability_increment,
            chance_limit=scheduler.update_probability_max,
        )

    def at(self, step: int) -> tuple[int, float]:
        """Largest number of helpers and probability of getting any, at ``step``."""
        if self.start_step <= 0 or step < self.start_step:
            return 0, 0.0
        if not self.grows:
            return self.n_max, self.chance
        n_steps = _growth_steps(step, self.n_growth_start, self.n_growth_interval)
        chance_steps = _growth_steps(step, self.chance_growth_start, self.chance_growth_interval)
        return (
            max(self.n_max, min(self.n_max + n_steps, self.n_limit)),
            max(self.chance, min(self.chance + chance_steps * self.chance_growth, self.chance_limit)),
        )

    def draw(self, step: int, references: Sequence[Task], rng: np.random.Generator) -> tuple[Task, ...]:
        """Tasks whose programs become helpers of one proposal: often none.

        Only tasks that are no composites themselves are eligible. Their number is uniform in
        ``[n_min, n_max)``, or ``n_min`` if both are equal.
        """
        n_max, chance = self.at(step)
        if n_max <= 0 or len(references) <= n_max or rng.random() >= chance:
            return ()
        n_min = min(max(self.n_min, 1), n_max)
        count = n_min if n_min == n_max else int(rng.integers(n_min, n_max))
        eligible = [task for task in references if not task.composites]
        chosen = rng.choice(len(eligible), size=min(count, len(eligible)), replace=False) if eligible else ()
        return tuple(eligible[index] for index in chosen)


def _growth_steps(step: int, start: int, interval: int) -> int:
    return 0 if step < start else 1 + (step - start) // interval
