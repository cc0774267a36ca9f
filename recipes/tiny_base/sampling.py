"""Random programs with verified examples, and the split between training and held-out programs."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from recipes.tiny_base.generator import Program, write_program
from recipes.tiny_base.language import Value, ValueType, random_value
from recipes.tiny_base.tracer import TraceLimit, trace

HELD_OUT_ONE_IN = 10
CONSTANT_KEPT = 0.1
"""Share of programs kept although three random inputs give one output: nothing is to be learned from them."""
UNINFORMATIVE_KEPT = 0.15
"""Share of tasks for code_i kept although most inputs give the asked output."""


@dataclass(frozen=True, slots=True)
class Example:
    """One call of a program: arguments, the result, and the lines of its trace."""

    arguments: tuple[Value, ...]
    output: Value
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sampled:
    """A program and its examples, all of which run within the limits of the tracer."""

    program: Program
    examples: tuple[Example, ...]


def is_held_out(source: str) -> bool:
    """Whether a normalised program (``ast.unparse``) is in the tenth that no training document contains."""
    return zlib.crc32(source.encode()) % HELD_OUT_ONE_IN == 0


def run_example(source: str, arguments: tuple[Value, ...], max_lines: int) -> Example | None:
    """Trace one call; None when it raises or exceeds a limit."""
    try:
        lines, output = trace(source, arguments, max_lines)
    except (TraceLimit, ArithmeticError, IndexError, TypeError, ValueError):
        return None
    return Example(arguments, output, tuple(lines))


def sample(
    rng: Random,
    statement_weights: Sequence[float],
    examples: int = 1,
    types: tuple[ValueType, ...] | None = None,
    max_lines: int = 14,
    nesting: float = 0.15,
    held_out: bool = False,
) -> Sampled:
    """A random program of one side of the split with ``examples`` distinct verified calls (at least one).

    ``statement_weights[n]`` is the weight of ``n`` statements before the return. At least three calls are
    run, so that programs with a constant result can be dropped.
    """
    while True:
        body_statements = rng.choices(range(len(statement_weights)), statement_weights)[0]
        program = write_program(rng, body_statements, types, nesting)
        if is_held_out(program.source) != held_out:
            continue
        calls = _distinct_calls(rng, program, max(3, examples), max_lines)
        if calls is None:
            continue
        if len({repr(call.output) for call in calls}) == 1 and rng.random() >= CONSTANT_KEPT:
            continue
        return Sampled(program, calls[:examples])


def sample_informative(
    rng: Random, statement_weights: Sequence[float], max_lines: int, held_out: bool = False
) -> Sampled:
    """Like `sample`, with four examples; mostly, at most one of the others has the first one's output."""
    while True:
        sampled = sample(rng, statement_weights, 4, max_lines=max_lines, held_out=held_out)
        target, *others = (repr(call.output) for call in sampled.examples)
        if others.count(target) < 2 or rng.random() < UNINFORMATIVE_KEPT:
            return sampled


def _distinct_calls(rng: Random, program: Program, count: int, max_lines: int) -> tuple[Example, ...] | None:
    """``count`` calls with distinct arguments; None when one fails or too few distinct ones are drawn."""
    calls: dict[tuple[str, ...], Example] = {}
    for _ in range(3 * count):
        arguments = tuple(random_value(rng, kind) for kind in program.types)
        call = run_example(program.source, arguments, max_lines)
        if call is None:
            return None
        calls[tuple(map(repr, arguments))] = call
        if len(calls) == count:
            return tuple(calls.values())
    return None
