"""Reading and rewriting the source text of programs, without running it.

What has to work on text that may not parse uses patterns; everything else uses the syntax tree and returns
``ast.unparse`` text without blank lines.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator

from azr_overrides.tasks.complexity import parse

_DEFINITION = re.compile(r"^[ \t]*def\s+(\w+)\s*\(", re.MULTILINE)
_IMPORT_LINE = re.compile(r"^[ \t]*((?:import|from)\s+\S.*?)[ \t]*$", re.MULTILINE)
_TEST_CODE = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"#\s*(?:test|example|usage)",  # a comment that announces a test
        r"^\s*\w*input\w*\s*=(?!=)",  # a variable for the test input
        r"\b(?:expected|output|result)\w*\s*=(?!=)",  # a variable for the expected value
        r"^\s*assert\b",
        r"\bprint\(\s*f\(",
        r"(?<!def )\bf\([^\n]*\)\s*$",  # a call of the entry function that ends its line
    )
)


def function_names(program: str) -> list[str]:
    """Names of all ``def`` statements in order, nested ones and methods included, but no ``async def``."""
    return _DEFINITION.findall(program)


def rename_function(program: str, old: str, new: str) -> str:
    """Rename the definition and the calls of ``old``, also in a program that does not parse.

    Attribute access (``x.old()``) is another object's and stays.
    """
    name = re.escape(old)
    program = re.sub(rf"\bdef\s+{name}\s*\(", f"def {new}(", program)
    return re.sub(rf"(?<![\w.]){name}\s*\(", f"{new}(", program)


def rename_definition_and_calls(program: str, old: str, new: str) -> str:
    """Rename the definition and the direct calls of ``old`` in the syntax tree; other mentions stay.

    Raises ValueError for text that is not a program.
    """
    tree = parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == old:
            node.name = new
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == old:
            node.func.id = new
    return compact(tree)


def collect_imports(program: str) -> tuple[str, ...]:
    """Import statements found anywhere in the program, in order, each once."""
    try:
        tree = parse(program)
    except ValueError:
        found = _IMPORT_LINE.findall(program)
    else:
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        found = [ast.unparse(node) for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset))]
    return tuple(dict.fromkeys(found))


def contains_test_code(program: str) -> bool:
    """True if the program seems to hold its own test: comments, inputs, expected values, asserts, calls."""
    return any(pattern.search(program) for pattern in _TEST_CODE)


def remove_comments(program: str) -> str:
    """Drop comments and leading docstrings. A text that does not parse is unchanged."""
    return _rewritten(program, _drop_docstrings)


def keep_definitions(program: str) -> str:
    """Keep only top-level imports, functions and classes. A text that does not parse is unchanged."""
    return _rewritten(program, _keep_definitions)


def remove_prints(program: str) -> str:
    """Drop ``print`` statements; in expressions the call becomes ``None``. Unparsable text is unchanged."""
    return _rewritten(program, _drop_prints)


def error_name(line: str) -> str:
    """The exception's name in the last line of a traceback: the text before the first colon."""
    return line.partition(":")[0].strip()


def shorten(text: str, limit: int = 400) -> str:
    """``text`` for showing: of more than ``limit`` characters only the first and last halves of that."""
    half = limit // 2
    return text if len(text) <= limit else f"{text[:half]}...{text[-half:]}"


def value_type(text: str) -> str:
    """Type name of a value's text, for counters: ``"1"`` is ``int``, ``"1, 2"`` is ``tuple``.

    Text that is not a literal counts as ``str``.
    """
    for candidate in (text, f"({text})"):
        try:
            return type(ast.literal_eval(candidate.strip())).__name__
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            continue
    return "str"


def compact(tree: ast.AST) -> str:
    """``ast.unparse`` without the blank lines that it puts between definitions.

    Raises ValueError for a tree that is nested too deeply to be written.
    """
    try:
        text = ast.unparse(tree)
    except RecursionError as error:
        raise ValueError("the program is nested too deeply to be rewritten") from error
    blank = set(_blank_lines(text))
    return "\n".join(line for number, line in enumerate(text.split("\n"), 1) if number not in blank)


def _blank_lines(text: str) -> Iterator[int]:
    """Numbers of the empty lines that are not part of a string."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.NL and not token.line.strip():
                yield token.start[0]
    except (tokenize.TokenError, IndentationError):
        # A body left empty by the removal of its docstring does not tokenize to the end.
        return


def _rewritten(program: str, rewrite: Callable[[ast.Module], ast.AST]) -> str:
    try:
        return compact(rewrite(parse(program)))
    except (ValueError, RecursionError):
        return program


def _drop_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            while node.body and _is_string_statement(node.body[0]):
                del node.body[0]
    return tree


def _is_string_statement(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _keep_definitions(tree: ast.Module) -> ast.Module:
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    tree.body = [node for node in tree.body if isinstance(node, kept)]
    return tree


def _drop_prints(tree: ast.Module) -> ast.Module:
    tree = _RemovePrints().visit(tree)
    for node in ast.walk(tree):
        if getattr(node, "body", None) == [] and not isinstance(node, ast.Module):
            node.body = [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return tree


class _RemovePrints(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        return None if _is_print(node.value) else self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return ast.Constant(None) if _is_print(node) else self.generic_visit(node)


def _is_print(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
