"""How complex a program is, by four measures that do not need to run it."""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from radon.visitors import ComplexityVisitor

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True, slots=True)
class Complexity:
    """Measures of one program; all are counts."""

    ast_depth: int  # nodes on the longest path from the module to a leaf, both included
    cyclomatic: int  # 1 + decision points of the whole program, helper functions and closures included
    lines: int  # physical lines that hold code: no blank line, comment or docstring
    variables: int  # distinct names that are bound as parameter or by assignment of any form


def complexity(program: str) -> Complexity:
    """Measure ``program``.

    Cyclomatic complexity (McCabe, 1976) follows radon's rules. No program that Python can parse is too deep
    or too long: nothing here recurses.

    Raises:
        ValueError: the text is not a Python program.
    """
    tree = parse(program)
    deepest = 0
    decisions = _DecisionPoints(off=False)
    variables: set[str] = set()
    docstring_lines: set[int] = set()
    for node, depth in walk_with_depth(tree):
        deepest = max(deepest, depth)
        decisions.count(node)
        variables.update(_bound_names(node))
        if isinstance(node, ast.Expr) and _is_string(node.value):
            docstring_lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Complexity(
        ast_depth=deepest,
        cyclomatic=1 + decisions.complexity,
        lines=len(_code_lines(program) - docstring_lines),
        variables=len(variables),
    )


def parse(program: str) -> ast.Module:
    """The syntax tree of ``program``; every way in which Python refuses a text becomes a ValueError."""
    try:
        return ast.parse(program)
    except (SyntaxError, RecursionError, MemoryError, UnicodeError) as error:
        raise ValueError(f"not a Python program ({type(error).__name__}: {error}): {program[:80]!r}") from error


def walk_with_depth(tree: ast.AST) -> Iterator[tuple[ast.AST, int]]:
    """Every node with its depth (the root has 1), parents before children, children in source order."""
    stack = [(tree, 1)]
    while stack:
        node, depth = stack.pop()
        yield node, depth
        stack.extend((child, depth + 1) for child in reversed(list(ast.iter_child_nodes(node))))


class _DecisionPoints(ComplexityVisitor):
    """radon's rules for single nodes: its own recursion would fail on a deep expression."""

    complexity: int

    def count(self, node: ast.AST) -> None:
        if isinstance(node, ast.Assert):
            self.visit_Assert(node)
        else:
            self.generic_visit(node)

    def visit(self, node: ast.AST) -> None:
        """Do not descend: the caller walks the tree."""


def _bound_names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
        case ast.MatchMapping(rest=str(name)):
            yield name


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _code_lines(program: str) -> set[int]:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(program).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines
