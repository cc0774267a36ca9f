"""The disposable process: read one request, call the program on each input, write one frame for each, end.

Everything before the program is loaded is trusted; nothing after. The functions that still run then use the
private builtins below, so that a program's patches don't reach them, and what they write is checked by the
trainer anyway.
"""

import builtins
import marshal
import os
import sys
import types

from . import protocol
from .arguments import BadInput, evaluate_arguments
from .canonical import NotAValue, ValueTooLong, canonical, type_name

__builtins__ = dict(vars(builtins))

MODULE_NAME = "program"

Answer = tuple[int, str]  # frame tag and text


def serve(connection: int) -> None:
    """Answer the request that waits on ``connection``, then end the process."""
    answer(connection)
    os._exit(0)


def answer(connection: int) -> None:
    """Read one request from ``connection`` and write one frame for each of its inputs."""
    (length,) = protocol.REQUEST_LENGTH.unpack(_read_exactly(connection, protocol.REQUEST_LENGTH.size))
    request = marshal.loads(_read_exactly(connection, length))  # the trainer wrote it, and nothing has run here yet
    arguments = [_evaluate(text) for text in request["inputs"]]
    function, failure = None, None
    for index, (args, problem) in enumerate(arguments):
        if problem is None and function is None and failure is None:
            function, failure = _load(request["program"], request["function"])
        outcome = problem or failure or _call(function, args, request["max_chars"])
        arguments[index] = (None, None)  # a large input is not kept for the next call
        _send(connection, index, outcome)


def _evaluate(text: str) -> tuple[tuple | None, Answer | None]:
    """Return (arguments, None) or (None, answer)."""
    try:
        return evaluate_arguments(text), None
    except BadInput as error:
        return None, (protocol.BAD_INPUT, str(error))
    except (MemoryError, RecursionError) as error:
        return None, (protocol.BAD_INPUT, type(error).__name__)


def _load(source: str, name: str) -> tuple[object, Answer | None]:
    """Execute the program in a module of its own. Return (function, None) or (None, answer)."""
    module = types.ModuleType(MODULE_NAME)
    sys.modules[MODULE_NAME] = module
    namespace = module.__dict__
    namespace["__builtins__"] = builtins
    try:
        exec(compile(source, "<program>", "exec", dont_inherit=True), namespace)
        if name not in namespace:
            raise NameError(f"the program does not define {name}")
        return namespace[name], None
    except BaseException as error:
        return None, _describe(error)


def _call(function, arguments, max_chars: int) -> Answer:
    args, kwargs = arguments
    try:
        return protocol.OK, canonical(function(*args, **kwargs), max_chars)
    except ValueTooLong as error:
        return protocol.OUTPUT_LIMIT, str(error)
    except NotAValue as error:
        return protocol.BAD_VALUE, str(error)
    except BaseException as error:
        return _describe(error)


def _describe(error: BaseException) -> Answer:
    """The answer for an exception: its class name and first line. The class and its text may be hostile."""
    if isinstance(error, MemoryError):
        return protocol.MEMORY, "MemoryError"
    name = type_name(type(error))
    try:
        message = str(error)
        lines = message.splitlines() if type(message) is str else []
    except BaseException:
        lines = []
    return protocol.EXCEPTION, name[:100] + "\n" + (lines[0][:200] if lines else "")


def _send(connection: int, index: int, answer: Answer) -> None:
    tag, text = answer
    body = text.encode("utf-8", "replace")
    if tag != protocol.OK:
        body = body[: protocol.MAX_ERROR_TEXT].decode("utf-8", "ignore").encode()
    data = protocol.FRAME_HEADER.pack(tag, index, len(body)) + body
    while data:
        data = data[os.write(connection, data) :]


def _read_exactly(connection: int, count: int) -> bytes:
    chunks = []
    while count:
        chunk = os.read(connection, count)
        if not chunk:
            os._exit(1)
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)
