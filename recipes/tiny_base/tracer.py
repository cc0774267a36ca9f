"""Execution traces: the reasoning that the tiny base learns to write.

A trace has one line for each executed statement: the copied statement, the values substituted into its
expression, the expression reduced by one operation at a time, and the new state, separated by `` : ``::

    x=[3, 1]
    a = len(x) + 3 : len([3, 1]) + 3 : 2 + 3 : a=5
    return a : 5

``name=value`` without spaces is used for state only. Only programs of the generator are traced: their
expressions are evaluated in this process.
"""

import ast
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.tiny_base.language import Value

MAX_REDUCTIONS = 8
MAX_VALUE_CHARACTERS = 40
MAX_INTEGER = 99  # integers above are not single tokens

_FUNCTIONS = {function.__name__: function for function in (abs, len, list, max, min, range, sorted, str, sum)}


class TraceLimit(Exception):
    """The run is too long, its values are too large, or it leaves the traceable language."""


class _Return(Exception):
    def __init__(self, value: Value):
        self.value = value


def trace(source: str, arguments: Sequence[Value], max_lines: int = 14) -> tuple[list[str], Value]:
    """Run a program of the generator and return its trace lines (without the binding line) and its result.

    Raises ``TraceLimit`` beyond ``max_lines`` lines or the module's limits, and whatever the program raises.
    """
    function = ast.parse(source).body[0]
    if not isinstance(function, ast.FunctionDef):
        raise TraceLimit("not a function definition")
    names = [argument.arg for argument in function.args.args]
    tracer = _Tracer(dict(zip(names, copy.deepcopy(list(arguments)), strict=True)), max_lines)
    try:
        tracer.run(function.body)
    except _Return as result:
        return tracer.lines, result.value
    raise TraceLimit("no return")


def binding(names: Sequence[str], arguments: Sequence[Value]) -> str:
    """The first line of a trace: the parameters and their values."""
    return " ".join(f"{name}={value!r}" for name, value in zip(names, arguments, strict=True)) + "\n"


class _Tracer:
    def __init__(self, state: dict[str, Value], max_lines: int):
        self.lines: list[str] = []
        self._state = state
        self._max_lines = max_lines
        self._iterated: list[str] = []

    def run(self, body: list[ast.stmt]) -> None:
        for statement in body:
            self._execute(statement)

    def _write(self, *parts: str) -> None:
        if len(self.lines) >= self._max_lines:
            raise TraceLimit("too many lines")
        self.lines.append(" : ".join(parts))

    def _execute(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Return(value=ast.expr() as expression):
                steps, value = _reduce(expression, self._state)
                self._write(ast.unparse(statement), *steps)
                raise _Return(value)
            case ast.Assign(targets=[ast.Name(id=name)], value=expression):
                self._assign(statement, name, expression)
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=expression):
                self._assign(statement, name, ast.BinOp(ast.Name(name, ast.Load()), operator, expression))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[item])):
                self._append(statement, name, item)
            case ast.If():
                self.run(statement.body if self._test("if", statement.test) else statement.orelse)
            case ast.While():
                while self._test("while", statement.test):
                    self.run(statement.body)
            case ast.For(target=ast.Name(id=name)):
                self._loop(statement, name)
            case _:
                raise TraceLimit(f"cannot trace {type(statement).__name__}")

    def _assign(self, statement: ast.stmt, name: str, expression: ast.expr) -> None:
        steps, value = _reduce(expression, self._state)
        self._state[name] = value
        self._write(ast.unparse(statement), *steps[:-1], f"{name}={value!r}")

    def _append(self, statement: ast.stmt, name: str, item: ast.expr) -> None:
        if name in self._iterated:
            raise TraceLimit("appends to the list it iterates over")
        values = self._state[name]
        steps, value = _reduce(item, self._state)
        if not isinstance(values, list) or not isinstance(value, int):
            raise TraceLimit("appends something else than an integer to a list")
        self._state[name] = [*values, value]
        self._write(ast.unparse(statement), *steps, f"{name}={self._state[name]!r}")

    def _test(self, keyword: str, condition: ast.expr) -> bool:
        steps, value = _reduce(condition, self._state)
        self._write(f"{keyword} {ast.unparse(condition)}", *steps)
        return bool(value)

    def _loop(self, statement: ast.For, name: str) -> None:
        iterable = ast.unparse(statement.iter)
        values = list(_evaluate(statement.iter, self._state))
        self._write(f"for {name} in {iterable}", repr(values))
        self._iterated.append(iterable)
        for value in values:
            self._state[name] = value
            self._write(f"{name}={value!r}")
            self.run(statement.body)
        self._iterated.pop()
        self._write("end")


def _evaluate(expression: ast.expr, state: Mapping[str, Value] | None = None) -> Any:
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<trace>", "eval")
    return eval(code, {"__builtins__": _FUNCTIONS, **(state or {})})


def _literal(value: Value) -> ast.expr:
    return ast.parse(repr(value), mode="eval").body


def _is_literal(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return isinstance(operand, ast.Constant)
        case ast.List(elts=elements):
            return all(map(_is_literal, elements))
    return False


def _reduce(expression: ast.expr, state: Mapping[str, Value]) -> tuple[list[str], Value]:
    """The texts of an expression as it is reduced operation by operation to a literal, and its value."""
    node = _Substitute(state).visit(copy.deepcopy(expression))
    steps = [ast.unparse(node)]
    while not _is_literal(node):
        if len(steps) > MAX_REDUCTIONS:
            raise TraceLimit("too many reductions")
        node = _ReduceOnce().visit(node)
        steps.append(ast.unparse(node))
    value = ast.literal_eval(node)
    if isinstance(value, int) and abs(value) > MAX_INTEGER or len(steps[-1]) > MAX_VALUE_CHARACTERS:
        raise TraceLimit("value too large")
    return steps, value


class _Substitute(ast.NodeTransformer):
    """Replaces variables by their values, except those that a comprehension binds."""

    def __init__(self, state: Mapping[str, Value]):
        self._state = state
        self._bound: set[str] = set()

    def visit_ListComp(self, node: ast.ListComp) -> ast.AST:
        self._bound |= {g.target.id for g in node.generators if isinstance(g.target, ast.Name)}
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Load) and node.id in self._state and node.id not in self._bound:
            return _literal(self._state[node.id])
        return node


class _ReduceOnce(ast.NodeTransformer):
    """Replaces the first innermost operation on literals by its value.

    A comprehension and ``list(range(...))`` are one operation; ``sum`` of a list first becomes additions.
    """

    def __init__(self) -> None:
        self._done = False

    def visit(self, node: ast.AST) -> Any:
        if self._done or _is_literal(node) or not isinstance(node, ast.expr) or isinstance(node, ast.Slice | ast.Name):
            return node
        match node:
            case ast.ListComp() | ast.Call(func=ast.Name(id="list")):
                pass
            case ast.Call(func=ast.Attribute() as method):
                method.value = self.visit(method.value)
                node.args = [self.visit(argument) for argument in node.args]
            case ast.Call():
                node.args = [self.visit(argument) for argument in node.args]
            case _:
                self.generic_visit(node)
        if self._done:
            return node
        self._done = True
        match node:
            case ast.Call(func=ast.Name(id="sum"), args=[ast.List(elts=[first, second, *rest])]):
                total: ast.expr = ast.BinOp(first, ast.Add(), second)
                for element in rest:
                    total = ast.BinOp(total, ast.Add(), element)
                return total
        return _literal(_evaluate(node))
