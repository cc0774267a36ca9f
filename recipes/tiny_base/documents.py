"""Training documents: AZR-shaped questions with reasoned answers, as weighted pieces of text.

Five kinds: write a program and an input (``PROPOSE``), write inputs and a message for a given program
(``PROPOSE_INPUTS``), predict an output (``OUTPUT``), find an input (``INPUT``), and write a program from
examples and a message (``PROGRAM``). The wording of the questions is that of ``prompts.yaml``.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from random import Random

from recipes.tiny_base.generator import Program, statement_count, write_program
from recipes.tiny_base.language import Value, argument_list, near_value, random_value, type_of
from recipes.tiny_base.sampling import Example, Sampled, is_held_out, run_example, sample, sample_informative
from recipes.tiny_base.tracer import binding

PROMPTS_FILE = Path(__file__).parent / "prompts.yaml"

PROPOSAL_STATEMENTS = (2.0, 2.2, 2.0, 1.6, 1.1, 0.7, 0.4, 0.25)
"""Weights of 0, 1, ... statements before the return in proposed programs."""
SOLVING_STATEMENTS = (3.0, 3.0, 2.2, 1.2, 0.6, 0.3, 0.1)
PROGRAM_STATEMENTS = (5.0, 1.5, 0.4)
INPUT_COUNTS = (4, 5, 6)

PROMPT_WEIGHT = 0.05
ARGUMENTS_WEIGHT = 1.5  # of the input that code_i looks for
VERDICT_WEIGHT = 4.0  # of the ``ok`` or ``no`` after a checked guess

GUESS_MAX_LINES = 9  # of a trace in a document that may hold two of them
WRONG_GUESSES = (0.45, 0.33, 0.22)  # shares of documents with 0, 1 and 2 wrong guesses before the right one
MAX_GUESSED_LINES = 12  # of all the traces in one document with wrong guesses
REFERENCE_SHARE = 0.4  # of the proposals, with an earlier task in the prompt

START = "<|im_start|>user\n"
THINK = "<|im_end|>\n<|im_start|>assistant\n<think>\n"
ANSWER = "</think>\n<answer>\n"
END = "</answer><|im_end|>"


class DocumentKind(StrEnum):
    PROPOSE = "propose"
    PROPOSE_INPUTS = "propose_inputs"
    OUTPUT = "code_o"
    INPUT = "code_i"
    PROGRAM = "code_f"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a document's text and the weight of its tokens in the loss."""

    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Document:
    kind: DocumentKind
    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


def kind_weights(level: float) -> dict[DocumentKind, float]:
    """Shares of the kinds; ``level`` in [0, 1] is the stage of the curriculum."""
    return {
        DocumentKind.PROPOSE: 0.14 + 0.07 * level,
        DocumentKind.PROPOSE_INPUTS: 0.04 + 0.02 * level,
        DocumentKind.OUTPUT: 0.48 - 0.09 * level,
        DocumentKind.INPUT: 0.20,
        DocumentKind.PROGRAM: 0.14,
    }


def write_document(rng: Random, level: float = 1.0, kind: DocumentKind | None = None) -> Document:
    """One random document; ``level`` 0 means one-line programs only, 1 the full mix."""
    if kind is None:
        shares = kind_weights(level)
        kind = rng.choices(list(shares), list(shares.values()))[0]
    writer = {
        DocumentKind.PROPOSE: _propose,
        DocumentKind.PROPOSE_INPUTS: _propose_inputs,
        DocumentKind.OUTPUT: _output,
        DocumentKind.INPUT: _input,
        DocumentKind.PROGRAM: _program,
    }[kind]
    return Document(kind, tuple(writer(rng, level)))


# Questions


def block(label: str, body: str) -> str:
    """A fenced block."""
    return f"```{label}\n{body}\n```\n"


def propose_question(reference: tuple[str, str] | None = None) -> str:
    """Asks for a program and an input; ``reference`` is an earlier task's (program, argument list)."""
    if reference is None:
        return "Propose a task.\n"
    return "Propose a task.\n" + block("python", reference[0]) + block("input", reference[1])


def propose_inputs_question(source: str, count: int) -> str:
    return f"Propose {count} inputs.\n" + block("python", source)


def output_question(source: str, arguments: str) -> str:
    return "Predict the output.\n" + block("python", source) + block("input", arguments)


def input_question(source: str, output: str) -> str:
    return "Find an input.\n" + block("python", source) + block("output", output)


def program_question(pairs: Sequence[tuple[str, str]], message: str) -> str:
    """Asks for a program; ``pairs`` are (argument list, output)."""
    blocks = "".join(block("input", arguments) + block("output", output) for arguments, output in pairs)
    return "Write the function.\n" + blocks + block("message", message)


def prompt(question: str) -> str:
    """A question as the chat template renders it, with the thinking tag open."""
    return START + question + THINK


# Messages


def message_for(program: Program, output: Value) -> str:
    """The result's type and the first three distinct operations, such as ``list loop append``."""
    finder = _OperationNames()
    finder.visit(ast.parse(program.source))
    return " ".join([type_of(output), *list(dict.fromkeys(finder.names))[:3]])


OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "div", ast.Mod: "mod"}
OPERATION_NAMES = (
    *OPERATORS.values(),
    *("abs", "len", "list", "max", "min", "range", "sorted", "str", "sum"),
    *("append", "count", "replace", "upper"),
    *("branch", "each", "filter", "index", "loop", "repeat", "reverse", "slice"),
)


class _OperationNames(ast.NodeVisitor):
    """Names of a program's operations in the order of its text."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                self.names.append(name)
            case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
                self.names.append(OPERATORS[type(operator)])
            case ast.ListComp(generators=[ast.comprehension(ifs=tests)]):
                self.names.append("filter" if tests else "each")
            case ast.Subscript(slice=ast.Slice(step=step)):
                self.names.append("reverse" if step else "slice")
            case ast.Subscript():
                self.names.append("index")
            case ast.If():
                self.names.append("branch")
            case ast.For():
                self.names.append("loop")
            case ast.While():
                self.names.append("repeat")
        self.generic_visit(node)


# Documents


def _curriculum(weights: Sequence[float], level: float) -> list[float]:
    """Statement weights with the longer programs held back at low levels."""
    return [weight * level**statements for statements, weight in enumerate(weights)]


def _propose(rng: Random, level: float) -> list[Piece]:
    weights = _curriculum(PROPOSAL_STATEMENTS, max(level, 0.3))
    if rng.random() < REFERENCE_SHARE:
        earlier, task = _similar_pair(rng, weights)
        reference = (earlier.program.source, argument_list(earlier.examples[0].arguments))
    else:
        reference, task = None, sample(rng, weights)
    answer = block("python", task.program.source) + block("input", argument_list(task.examples[0].arguments))
    return [Piece(prompt(propose_question(reference)), 0.0), Piece(ANSWER + answer + END, 1.0)]


def _similar_pair(rng: Random, weights: Sequence[float]) -> tuple[Sampled, Sampled]:
    """Two different programs whose lengths differ by at most one statement: a reference and its successor.

    They are drawn together because the pair must be exchangeable: then a chain of proposals, each the reference of
    the next, is reversible and drifts to neither longer nor shorter programs, and growth in a run is not a habit of
    the base.
    """
    while True:
        first, second = sample(rng, weights), sample(rng, weights)
        sources = first.program.source, second.program.source
        if sources[0] != sources[1] and abs(statement_count(sources[0]) - statement_count(sources[1])) <= 1:
            return first, second


def _propose_inputs(rng: Random, level: float) -> list[Piece]:
    count = rng.choice(INPUT_COUNTS)
    task = sample(rng, _curriculum(SOLVING_STATEMENTS, max(level, 0.3)), count)
    blocks = "".join(block("input", argument_list(example.arguments)) for example in task.examples)
    message = block("message", message_for(task.program, task.examples[0].output))
    return [
        Piece(prompt(propose_inputs_question(task.program.source, count)), 0.0),
        Piece(ANSWER + blocks + message + END, 1.0),
    ]


def _output(rng: Random, level: float) -> list[Piece]:
    task = sample(rng, _curriculum(SOLVING_STATEMENTS, level))
    example = task.examples[0]
    return [
        Piece(prompt(output_question(task.program.source, argument_list(example.arguments))), PROMPT_WEIGHT),
        Piece(_run(task.program, example) + ANSWER + block("output", repr(example.output)) + END, 1.0),
    ]


def _input(rng: Random, level: float) -> list[Piece]:
    task = sample_informative(rng, _curriculum(SOLVING_STATEMENTS, level), max_lines=GUESS_MAX_LINES)
    names, example = task.program.parameters, task.examples[0]
    target = example.output
    pieces = [Piece(prompt(input_question(task.program.source, repr(target))), PROMPT_WEIGHT)]
    for _ in range(_wrong_guesses(rng, example)):
        guess = _wrong_input(rng, task.program, example)
        if guess is not None:
            pieces += [Piece(binding(names, guess.arguments), 0.0), *_checked(guess, target)]
    return [
        *pieces,
        Piece(binding(names, example.arguments), ARGUMENTS_WEIGHT),
        *_checked(example, target),
        Piece(ANSWER + block("input", argument_list(example.arguments)) + END, 1.0),
    ]


def _program(rng: Random, level: float) -> list[Piece]:
    shown = rng.choice((2, 3))
    task = sample(rng, _curriculum(PROGRAM_STATEMENTS, level), shown, max_lines=GUESS_MAX_LINES, nesting=0.05)
    example = task.examples[0]
    pairs = [(argument_list(call.arguments), repr(call.output)) for call in task.examples]
    question = program_question(pairs, message_for(task.program, example.output))
    pieces = [Piece(prompt(question), PROMPT_WEIGHT)]
    for _ in range(_wrong_guesses(rng, example)):
        guess = _wrong_program(rng, task.program, example)
        if guess is not None:
            pieces += [Piece(binding(task.program.parameters, example.arguments), 0.0)]
            pieces += _checked(guess, example.output, trace_weight=0.0)
    return [
        *pieces,
        Piece(binding(task.program.parameters, example.arguments), 1.0),
        *_checked(example, example.output),
        Piece(ANSWER + block("python", task.program.source) + END, 1.0),
    ]


def _run(program: Program, example: Example) -> str:
    return binding(program.parameters, example.arguments) + "\n".join(example.lines) + "\n"


def _checked(guess: Example, target: Value, trace_weight: float = 1.0) -> list[Piece]:
    """The trace of a guess, the copied target, and the verdict."""
    verdict = "ok" if repr(guess.output) == repr(target) else "no"
    return [
        Piece("\n".join(guess.lines) + "\n", trace_weight),
        Piece(f"goal {target!r}", 1.0),
        Piece(f" {verdict}\n", VERDICT_WEIGHT),
    ]


# Guesses


def _wrong_guesses(rng: Random, example: Example) -> int:
    """How many wrong guesses to try before the right one: none when the traces would grow too long."""
    count = rng.choices(range(len(WRONG_GUESSES)), WRONG_GUESSES)[0]
    return count if (1 + count) * len(example.lines) <= MAX_GUESSED_LINES else 0


def _wrong_input(rng: Random, program: Program, example: Example, tries: int = 5) -> Example | None:
    """A call with another result: near the right input, or a random one."""
    for _ in range(tries):
        arguments = list(example.arguments)
        if rng.random() < 0.5:
            place = rng.randrange(len(arguments))
            arguments[place] = near_value(rng, arguments[place])
        else:
            arguments = [random_value(rng, kind) for kind in program.types]
        guess = run_example(program.source, tuple(arguments), GUESS_MAX_LINES)
        if guess is not None and repr(guess.output) != repr(example.output) and len(guess.lines) < 6:
            return guess
    return None


def _wrong_program(rng: Random, program: Program, example: Example, tries: int = 12) -> Example | None:
    """A call of another program of the same types with another result of the same type."""
    for _ in range(tries):
        if rng.random() < 0.5:
            source = _mutated(rng, program.source)
        else:
            source = write_program(rng, rng.choice((0, 0, 1)), program.types, nesting=0.05).source
        if is_held_out(source):
            continue
        guess = run_example(source, example.arguments, GUESS_MAX_LINES)
        if guess is not None and guess.output != example.output and type(guess.output) is type(example.output):
            return guess
    return None


def _mutated(rng: Random, source: str) -> str:
    """The program with one integer constant or arithmetic operator replaced; unchanged when it has none."""
    tree = ast.parse(source)
    places = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) or isinstance(node, ast.Constant) and type(node.value) is int
    ]
    if places:
        node = rng.choice(places)
        if isinstance(node, ast.BinOp):
            node.op = rng.choice((ast.Add, ast.Sub, ast.Mult))()
        elif isinstance(node, ast.Constant):
            node.value = rng.randint(0, 9)
    return ast.unparse(tree)
