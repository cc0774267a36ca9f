"""Inputs: the argument list of exactly one call, without a way to reach anything but plain values.

An input is written by a model too, and for abduction by the student whose answer is being judged, so it must
not be able to touch the process that runs the program. It is parsed as the inside of one pair of parentheses,
limited to literals, operators, comprehensions, pure built-in functions and methods of plain values, and
evaluated before the program is loaded. Names of the program are therefore unknown to it.
"""

import ast
import builtins
import re

__builtins__ = dict(vars(builtins))

MAX_DEPTH = 100

_FUNCTIONS = """
abs all any ascii bin bool bytes chr complex dict divmod enumerate filter float frozenset hex int
len list map max min oct ord pow range repr reversed round set sorted str sum tuple zip
"""
_NAMESPACE = {name: getattr(builtins, name) for name in _FUNCTIONS.split()}
_SCALARS = (int, bool, float, complex, str, bytes, type(None))
_SEQUENCES = (list, tuple, set, frozenset)
# Methods that read attributes of their arguments by name, or that need a frame, are not among these.
_METHODS = frozenset(
    name for kind in (*_SCALARS, *_SEQUENCES, dict) for name in dir(kind) if not name.startswith("_")
) - {"format", "format_map"}
_NODES = (
    ast.Constant,
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.Starred,
    ast.keyword,
    ast.UnaryOp,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Subscript,
    ast.Slice,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
    ast.comprehension,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.Call,
    ast.expr_context,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


# Outside its strings such text has no letter of which a name, a keyword or an attribute could be made.
_LITERALS = re.compile(
    r"""(?: '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | True | False | None
      | (?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)? | [][(){},:+*/\s-] )*""",
    re.VERBOSE | re.DOTALL,
)


class BadInput(ValueError):
    """The text is not the argument list of one call of plain values."""


def parse_arguments(text: str) -> ast.Call:
    """Parse ``text`` as what stands between the parentheses of one call; evaluate nothing.

    Raises BadInput.
    """
    try:
        tree = ast.parse(f"f({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BadInput(f"not an argument list: {type(error).__name__}") from error
    if not (isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name)):
        raise BadInput("not the arguments of one call")
    arguments = [*tree.args, *tree.keywords]
    targets = frozenset(
        node.id
        for argument in arguments
        for node in ast.walk(argument)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
    for argument in arguments:
        _check(argument, targets, MAX_DEPTH)
    return tree


def _check(node: ast.AST, targets: frozenset[str], depth: int) -> None:
    if depth == 0:
        raise BadInput(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(node, ast.Name):
        if node.id not in targets and node.id not in _NAMESPACE:
            raise BadInput(f"unknown name {node.id!r}")
    elif isinstance(node, ast.Attribute):
        if node.attr not in _METHODS:
            raise BadInput(f"attribute {node.attr!r} is not a method of a plain value")
    elif not isinstance(node, _NODES):
        raise BadInput(f"{type(node).__name__} is not allowed in an input")
    for child in ast.iter_child_nodes(node):
        _check(child, targets, depth - 1)


class _Arguments:
    """What a call was given. It supports no operator, so an expression that yields one is that call alone."""

    __slots__ = ("args", "kwargs")

    def __init__(self, /, *args: object, **kwargs: object) -> None:
        self.args = args
        self.kwargs = kwargs


def evaluate_arguments(text: str) -> tuple[tuple, dict]:
    """Return the positional and keyword arguments that ``text`` stands for, for use in a confined process
    only.

    Raises BadInput if the text is not an argument list, if evaluating it fails, or if an argument is neither
    a plain value nor a range.
    """
    if _LITERALS.fullmatch(text):  # the usual case, at a third of the cost of a syntax tree
        return _evaluate(f"f({text}\n)", {"f": _Arguments})
    args, kwargs = _evaluate(ast.Expression(parse_arguments(text)), {**_NAMESPACE, "f": _Arguments})
    _check_plain((args, kwargs), MAX_DEPTH + 2)
    return args, kwargs


def _evaluate(expression: str | ast.Expression, namespace: dict) -> tuple[tuple, dict]:
    try:
        captured = eval(compile(expression, "<input>", "eval"), {**namespace, "__builtins__": {}})
    except Exception as error:
        raise BadInput(f"evaluating it raised {type(error).__name__}") from error
    if type(captured) is not _Arguments:
        raise BadInput("not the arguments of one call")
    return captured.args, captured.kwargs


def _check_plain(value: object, depth: int) -> None:
    kind = type(value)
    if kind in _SCALARS or kind is range:
        return
    if depth == 0:
        raise BadInput(f"nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            _check_plain(key, depth - 1)
            _check_plain(item, depth - 1)
    elif kind in _SEQUENCES:
        for item in value:  # type: ignore[attr-defined]
            _check_plain(item, depth - 1)
    else:
        raise BadInput("an argument is not a plain value")
