"""Random typed Python functions of the small language."""

import ast
from dataclasses import dataclass
from random import Random

from recipes.tiny_base.language import CHARACTER, COUNTER, ELEMENT, LETTERS, NAMES, ValueType

INT, LIST, STR = ValueType.INT, ValueType.LIST, ValueType.STR
INDENT = "    "

LIST_OPERATIONS = (
    *("sorted", "sorted", "reverse", "reverse", "tail", "head", "join", "append"),
    *("map+", "map+", "map*", "filter", "filter"),
)
STRING_OPERATIONS = (
    *("reverse", "reverse", "join", "join", "letter", "upper", "repeat", "tail", "head", "replace", "index"),
)


@dataclass(frozen=True, slots=True)
class Program:
    """A function ``f`` as normalised text (``ast.unparse``), with its parameters."""

    source: str
    parameters: tuple[str, ...]
    types: tuple[ValueType, ...]  # one per parameter


def statement_count(source: str) -> int:
    """Statements of a program, nested ones and the return included, the ``def`` itself not."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(source))) - 1


def write_program(
    rng: Random, body_statements: int, types: tuple[ValueType, ...] | None = None, nesting: float = 0.15
) -> Program:
    """Write one random function.

    ``body_statements`` lines precede the return (more when the last statement is compound), ``types`` are the
    parameters' types (random when None), ``nesting`` is the probability that an operand is an expression.
    The program may raise or exceed the language's limits for some inputs: the tracer decides.
    """
    types = types or tuple(
        rng.choice((INT, INT, LIST, LIST, LIST, STR, STR)) for _ in range(rng.choice((1, 1, 1, 2, 2)))
    )
    return _Writer(rng, nesting).write(body_statements, types)


class _Writer:
    """Writes one function; ``_scope`` maps variables to their types, in order of introduction."""

    def __init__(self, rng: Random, nesting: float):
        self._rng = rng
        self._nesting = nesting
        self._scope: dict[str, ValueType] = {}

    def write(self, body_statements: int, types: tuple[ValueType, ...]) -> Program:
        for kind in types:
            self._scope[self._fresh_name(kind)] = kind
        parameters = tuple(self._scope)
        lines: list[str] = []
        while len(lines) < body_statements:
            lines += self._statement(INDENT, depth=0)
        lines.append(INDENT + "return " + self._result(body_statements))
        text = f"def f({', '.join(parameters)}):\n" + "\n".join(lines)
        return Program(ast.unparse(ast.parse(text)), parameters, types)

    def _result(self, body_statements: int) -> str:
        """What the function returns: mostly what was computed last."""
        rng = self._rng
        last = list(self._scope)[-1] if body_statements and rng.random() < 0.75 else None
        if body_statements and rng.random() >= 0.4:
            return last or rng.choice(list(self._scope))
        kind = self._scope[last] if last else rng.choice(list(self._scope.values()))
        if not body_statements and rng.random() < 0.3:
            kind = INT
        return self._expression(kind)

    # Names and atoms

    def _variable(self, kind: ValueType) -> str | None:
        """A variable of this type, recent ones preferred; None when the scope has none."""
        candidates = [name for name, its_kind in self._scope.items() if its_kind is kind]
        if not candidates:
            return None
        return self._rng.choice(candidates[-2:] if self._rng.random() < 0.5 else candidates)

    def _fresh_name(self, kind: ValueType) -> str:
        """The first unused name of this type, or its last one when all are used."""
        return next((name for name in NAMES[kind] if name not in self._scope), NAMES[kind][-1])

    def _atom(self, kind: ValueType) -> str:
        rng = self._rng
        variable = self._variable(kind)
        if variable and (kind is LIST or rng.random() < 0.85):
            return variable
        if kind is INT:
            return str(rng.randint(0, 9))
        if kind is LIST:
            return repr(rng.choices(range(10), k=rng.randint(1, 3)))
        return repr("".join(rng.choices(LETTERS, k=rng.randint(1, 2))))

    def _constant(self, highest: int = 5) -> str:
        return str(self._rng.randint(1, highest))

    def _letter(self) -> str:
        return repr(self._rng.choice(LETTERS))

    # Expressions

    def _expression(self, kind: ValueType) -> str:
        """An expression with at least one operation."""
        if kind is INT:
            return self._int_expression()
        return self._list_expression() if kind is LIST else self._string_expression()

    def _operand(self) -> str:
        """An integer operand: an atom, or with probability ``nesting`` an expression over atoms."""
        if self._rng.random() >= self._nesting:
            return self._atom(INT)
        nesting, self._nesting = self._nesting, 0.0
        text = self._int_expression()
        self._nesting = nesting
        return text

    def _int_expression(self) -> str:
        rng = self._rng
        values, text, number = self._variable(LIST), self._variable(STR), self._variable(INT)
        operations = ["+", "+k", "-k", "*k"]
        if number:
            operations += ["+", "-", "-", "%", "//", "+k", "-k", "*k", "max2", "min2", "abs"]
        if values:
            operations += ["len", "sum", "index", "index", "max", "min", "count"] * (1 if number else 2)
        if text:
            operations += ["length", "occurrences"] * (2 if number else 3)
        match rng.choice(operations):
            case ("+" | "-") as sign:
                return f"{self._operand()} {sign} {self._atom(INT)}"
            case ("+k" | "-k") as signed:
                return f"{self._operand()} {signed[0]} {self._constant(9)}"
            case "*k":
                return f"{self._atom(INT)} * {rng.choice('223')}"
            case ("%" | "//") as division:
                return f"{self._atom(INT)} {division} {rng.choice('2235')}"
            case "abs":
                return f"abs({self._atom(INT)} - {self._atom(INT)})"
            case ("max2" | "min2") as extremum:
                return f"{extremum[:3]}({self._atom(INT)}, {self._atom(INT)})"
            case ("len" | "sum" | "max" | "min") as function:
                return f"{function}({values})"
            case "index":
                return f"{values}[{rng.choice(('0', '-1', '1'))}]"
            case "count":
                return f"{values}.count({self._atom(INT)})"
            case "length":
                return f"len({text})"
            case _:
                return f"{text}.count({self._letter()})"

    def _list_expression(self) -> str:
        rng = self._rng
        values, number = self._variable(LIST), self._variable(INT)
        if not values:
            return rng.choice(
                (
                    f"[{self._atom(INT)}, {self._atom(INT)}]",
                    f"list(range({number or self._constant()}))",
                    f"[{self._atom(INT)}] * {rng.choice('23')}",
                )
            )
        match rng.choice(LIST_OPERATIONS):
            case "sorted":
                return f"sorted({values})"
            case "reverse":
                return f"{values}[::-1]"
            case "tail":
                return f"{values}[{rng.choice('112')}:]"
            case "head":
                return f"{values}[:{rng.choice(('2', '1', '-1'))}]"
            case "join":
                return f"{values} + {self._atom(LIST)}"
            case "append":
                return f"{values} + [{self._atom(INT)}]"
            case "map+":
                shift = number if number and rng.random() < 0.4 else self._constant()
                return f"[{ELEMENT} {rng.choice('+-+')} {shift} for {ELEMENT} in {values}]"
            case "map*":
                return f"[{ELEMENT} * 2 for {ELEMENT} in {values}]"
            case _:
                test = rng.choice(
                    (
                        f"> {self._constant(7)}",
                        f"< {self._constant(7)}",
                        f"> {number or 4}",
                        "% 2 == 0",
                        f"!= {self._atom(INT)}",
                    )
                )
                return f"[{ELEMENT} for {ELEMENT} in {values} if {ELEMENT} {test}]"

    def _string_expression(self) -> str:
        rng = self._rng
        text = self._variable(STR)
        if not text:
            return rng.choice((f"str({self._atom(INT)})", f"{self._letter()} * {self._constant(3)}"))
        match rng.choice(STRING_OPERATIONS):
            case "reverse":
                return f"{text}[::-1]"
            case "join":
                return f"{text} + {self._atom(STR)}"
            case "letter":
                return f"{self._letter()} + {text}" if rng.random() < 0.5 else f"{text} + {self._letter()}"
            case "upper":
                return f"{text}.upper()"
            case "repeat":
                return f"{text} * 2"
            case "tail":
                return f"{text}[{rng.choice('112')}:]"
            case "head":
                return f"{text}[:{rng.choice(('2', '1', '-1'))}]"
            case "replace":
                return f"{text}.replace({self._letter()}, {self._letter()})"
            case _:
                return f"{text}[{rng.choice(('0', '-1'))}]"

    def _condition(self) -> str:
        rng = self._rng
        number, values, text = self._variable(INT), self._variable(LIST), self._variable(STR)
        match rng.choice([kind for kind in (INT, INT, LIST, STR) if self._variable(kind)]):
            case ValueType.INT:
                tests = (
                    f"> {self._constant(8)}",
                    f"< {self._constant(8)}",
                    f"> {self._atom(INT)}",
                    "% 2 == 0",
                    f"== {self._constant()}",
                )
                return f"{number} {rng.choice(tests)}"
            case ValueType.LIST:
                return rng.choice(
                    (
                        f"len({values}) > {self._constant(3)}",
                        f"{self._atom(INT)} in {values}",
                        f"{values}[0] > {self._constant()}",
                    )
                )
            case _:
                return rng.choice((f"len({text}) > {self._constant(3)}", f"{self._letter()} in {text}"))

    # Statements

    def _statement(self, indent: str, depth: int) -> list[str]:
        """The lines of one statement; compound ones hold at most two levels."""
        draw = self._rng.random()
        if depth >= 2 or draw < 0.62:
            return [indent + self._assignment()]
        if draw < 0.80:
            return self._branch(indent, depth)
        number = self._variable(INT)
        if draw < 0.96 or not number:
            return self._for_loop(indent, depth)
        return [
            f"{indent}while {number} > {self._constant()}:",
            f"{indent}{INDENT}{number} -= {self._rng.randint(2, 4)}",
        ]

    def _assignment(self) -> str:
        rng = self._rng
        has_list, has_string = self._variable(LIST), self._variable(STR)
        if has_list:
            kinds = (INT, INT, LIST, LIST, STR) if has_string else (INT, INT, INT, LIST, LIST)
        else:
            kinds = (INT, INT, STR, STR) if has_string else (INT, INT, INT, INT, LIST)
        kind = rng.choice(kinds)
        variable = self._variable(kind)
        if variable and rng.random() < 0.35:
            if kind is INT and rng.random() < 0.5:
                return f"{variable} {rng.choice(('+=', '-=', '+='))} {self._atom(INT)}"
            if kind is LIST and rng.random() < 0.4:
                return f"{variable}.append({self._atom(INT)})"
            return f"{variable} = {self._expression(kind)}"
        expression = self._expression(kind)
        name = self._fresh_name(kind)
        self._scope[name] = kind
        return f"{name} = {expression}"

    def _branch(self, indent: str, depth: int) -> list[str]:
        rng = self._rng
        condition = self._condition()
        variable = rng.choice(list(self._scope))
        kind = self._scope[variable]
        outer_scope = dict(self._scope)
        if rng.random() < 0.2:
            return [f"{indent}if {condition}:", f"{indent}{INDENT}return {self._expression(kind)}"]
        lines = [f"{indent}if {condition}:", f"{indent}{INDENT}{variable} = {self._expression(kind)}"]
        if rng.random() < 0.15:
            lines += self._statement(indent + INDENT, depth + 1)
        self._scope = outer_scope
        if rng.random() < 0.4:
            lines += [f"{indent}else:", f"{indent}{INDENT}{variable} = {self._expression(kind)}"]
        return lines

    def _for_loop(self, indent: str, depth: int) -> list[str]:
        """A loop that accumulates into a number, list or string."""
        rng = self._rng
        outer_scope = dict(self._scope)
        iterable, loop_variable, loop_kind = self._iterable()
        result_kind = rng.choice((INT, INT, LIST) if loop_kind is INT else (INT, STR))
        result, lines = self._variable(result_kind), []
        if not result or rng.random() < 0.75 or result == iterable:
            result = self._fresh_name(result_kind)
            start = {INT: rng.choice("001"), LIST: "[]", STR: "''"}[result_kind]
            lines.append(f"{indent}{result} = {start}")
        lines.append(f"{indent}for {loop_variable} in {iterable}:")
        self._scope = {**outer_scope, loop_variable: loop_kind, result: result_kind}
        inner = indent + INDENT
        if rng.random() < 0.3:
            lines.append(f"{inner}if {self._loop_test(loop_variable, loop_kind)}:")
            inner += INDENT
        lines.append(inner + self._accumulation(result, result_kind, loop_variable, loop_kind))
        if rng.random() < 0.12 and depth == 0:
            lines += self._statement(indent + INDENT, depth + 1)
        self._scope = {**outer_scope, result: result_kind}
        return lines

    def _iterable(self) -> tuple[str, str, ValueType]:
        """What a loop runs over, its loop variable and that variable's type."""
        rng = self._rng
        values, text = self._variable(LIST), self._variable(STR)
        if values and rng.random() < 0.7:
            return values, ELEMENT, INT
        if text and rng.random() < 0.6:
            return text, CHARACTER, STR
        number = self._variable(INT)
        bound = number if number and rng.random() < 0.1 else str(rng.randint(2, 4))
        return f"range({bound})", COUNTER, INT

    def _loop_test(self, variable: str, kind: ValueType) -> str:
        if kind is STR:
            return f"{variable} {self._rng.choice(('==', '!='))} {self._letter()}"
        return f"{variable} {self._rng.choice((f'> {self._constant()}', '% 2 == 0', f'< {self._constant()}'))}"

    def _accumulation(self, result: str, result_kind: ValueType, variable: str, kind: ValueType) -> str:
        rng = self._rng
        if result_kind is INT:
            step = rng.choice((variable, variable, "1", "2")) if kind is INT else "1"
            return f"{result} {rng.choice(('+=', '+=', '+=', '-='))} {step}"
        if result_kind is LIST:
            item = rng.choice((variable, f"{variable} + {self._constant()}", f"{variable} * 2"))
            return f"{result}.append({item})"
        return rng.choice((f"{result} += {variable}", f"{result} = {variable} + {result}"))
