"""What a proposed program may not mention: banned modules, sources of randomness, ways around these checks.

This is a filter for tasks, not the protection of the machine: whatever slips through still runs confined.
Imports and attribute chains are followed through their aliases (``import os as o; o.path.join`` is
``os.path.join``).
"""

import ast
import re
from collections.abc import Iterable, Iterator, Sequence

DEFAULT_BANNED_WORDS = (
    "logging",
    "random",
    "multiprocessing",
    "pebble",
    "subprocess",
    "threading",
    "datetime",
    "time",
    "hashlib",
    "hmac",
    "bcrypt",
    "os.sys",
    "os.path",
    "sys.exit",
    "os.environ",
    "calendar",
)

_CHANGING = (
    "random",
    "_random",
    "secrets",
    "uuid",
    "time",
    "timeit",
    "tempfile",
    "os.urandom",
    "os.getrandom",
    "os.getpid",
    "os.getppid",
    "os.times",
    "os.stat",
    "os.environ",
    "gc",
    "ctypes",
)
_CLOCK_METHODS = frozenset({"now", "utcnow", "today"})
_CHANGING_BUILTINS = frozenset({"id", "hash"})
_DYNAMIC_NAMES = frozenset({"eval", "exec", "compile", "__import__", "__builtins__", "__loader__", "__spec__"})
_DYNAMIC_PATHS = ("importlib", "builtins", "sys.modules", "sys._getframe", "inspect")
_DYNAMIC_ATTRIBUTES = frozenset(
    {
        "__builtins__",
        "__globals__",
        "__subclasses__",
        "__hash__",
        "__import__",
        "__code__",
        "f_globals",
        "f_builtins",
    }
)
_KEYWORDS: dict[str, type[ast.AST] | tuple[type[ast.AST], ...]] = {
    "assert": ast.Assert,
    "raise": ast.Raise,
    "try": (ast.Try, ast.TryStar),
    "except": ast.ExceptHandler,
}


def parse_program(program: str) -> ast.Module:
    """Parse model-written source. Raises SyntaxError, also for what Python gives up on for its depth."""
    try:
        return ast.parse(program)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(f"can't be parsed: {error or type(error).__name__}") from error


def find_banned(program: str, banned_words: Iterable[str], banned_keywords: Sequence[str] = ()) -> str | None:
    """Return the first banned thing in ``program``, or None.

    A plain word bans every import with that word as one of its dotted parts, and attribute chains that start
    at an imported module; a dotted one (``os.path``) bans what starts with it. ``__import__`` counts as an
    import. Text that does not parse is searched for the words instead. ``banned_keywords`` are statements:
    assert, raise, try, except.
    """
    words = tuple(banned_words)
    try:
        tree = parse_program(program)
    except SyntaxError:
        return next((word for word in words if re.search(rf"\b{re.escape(word)}\b", program)), None)
    for path in _paths(tree):
        for word in words:
            if _starts_with(path, word) if "." in word else word in path.split("."):
                return word
    for keyword in banned_keywords:
        if any(isinstance(node, _KEYWORDS[keyword]) for node in ast.walk(tree)):
            return keyword
    return None


def find_nondeterminism(tree: ast.Module) -> str | None:
    """Return the first thing in a program whose value differs between runs or machines, or None.

    Clocks, random numbers, unique ids, process ids, ``id`` and ``hash``; and whatever hides them from this
    check, such as ``eval`` and dynamic imports.
    """
    for path in _paths(tree):
        for changing in _CHANGING + _DYNAMIC_PATHS:
            if _starts_with(path, changing):
                return changing
        if path.startswith("datetime.") and path.rpartition(".")[2] in _CLOCK_METHODS:
            return path
    bound = {name for node in ast.walk(tree) for name in _bound_names(node)}
    suspicious = (_CHANGING_BUILTINS | _DYNAMIC_NAMES) - bound
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in suspicious:
            return node.id
        if isinstance(node, ast.Attribute) and node.attr in _DYNAMIC_ATTRIBUTES:
            return node.attr
    return None


def _starts_with(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(prefix + ".")


def _paths(tree: ast.Module) -> Iterator[str]:
    """Dotted paths of all imports, and of all attribute chains that start at an imported name."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                yield alias.name
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                path = f"{node.module}.{alias.name}" if node.module else alias.name
                aliases[alias.asname or alias.name] = path
                yield path
        elif isinstance(node, ast.Call) and _is_dynamic_import(node.func) and node.args:
            argument = node.args[0]
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                yield argument.value
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and (chain := _chain(node)) and chain[0] in aliases:
            yield ".".join((aliases[chain[0]], *chain[1:]))


def _is_dynamic_import(function: ast.expr) -> bool:
    return (
        isinstance(function, ast.Name)
        and function.id in ("__import__", "import_module")
        or isinstance(function, ast.Attribute)
        and function.attr in ("__import__", "import_module")
    )


def _chain(node: ast.expr) -> list[str]:
    """``a.b.c`` as its parts; empty if it does not start at a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id, *reversed(parts)] if isinstance(node, ast.Name) else []


def _bound_names(node: ast.AST) -> tuple[str, ...]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return (node.id,)
    if isinstance(node, ast.arg):
        return (node.arg,)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (node.name,)
    return ()
