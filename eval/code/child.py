"""What runs inside a confined child: load the program, feed it, send back what it returns.

Two modes. ``call``: the program defines a function, each result goes back as one line of JSON. ``script``: the program
reads standard input, and whatever it writes to standard output goes back as it is.
"""

import builtins
import json
import os
import sys
import time
import types

from eval.code import values

EXIT_HARNESS = 97  # this module failed before the program ran
EXIT_EXCEPTION = 1
CHANNEL = 3  # descriptor of the results in call mode
# What LiveCodeBench puts before every program, in this order: later names win.
_STAR_IMPORTS_TEXT = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools "
    "operator io sys json builtins typing"
)
_STAR_IMPORTS = _STAR_IMPORTS_TEXT.split()
_RECURSION_LIMIT = 50_000


def receive_request(channel: int) -> dict:
    size = int.from_bytes(_read_exactly(channel, 8), "big")
    return json.loads(_read_exactly(channel, size))


def _read_exactly(channel: int, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = os.read(channel, min(count - len(data), 1 << 20))
        if not chunk:
            raise EOFError("the grader hung up")
        data += chunk
    return bytes(data)


def arrange_standard_files(channel: int, source: int, mode: str) -> None:
    """Standard input: ``source``. Standard output: the channel in script mode, else nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(source, 0)
    os.dup2(channel if mode == "script" else nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", errors="surrogatepass", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", errors="surrogatepass", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)


def execute(request: dict) -> None:
    """Run the program and leave the process; never returns."""
    if request["mode"] == "script":
        _run_script(request)
    else:
        _run_calls(request)


def _prelude(namespace: dict) -> None:
    for name in _STAR_IMPORTS:
        exec(f"from {name} import *", namespace)
    for name in _STAR_IMPORTS[:-2]:
        exec(f"import {name}", namespace)
    sys.setrecursionlimit(_RECURSION_LIMIT)


def _load(request: dict, name: str) -> dict:
    module = types.ModuleType(name)
    sys.modules[name] = module
    namespace = vars(module)
    namespace["__builtins__"] = builtins
    if request.get("prelude"):
        _prelude(namespace)
    exec(compile(request["program"], "<solution>", "exec", dont_inherit=True), namespace)
    return namespace


def _run_script(request: dict) -> None:
    code = 0
    try:
        _load(request, "__main__")
    except SystemExit:
        pass
    except BaseException:
        code = EXIT_EXCEPTION
    try:
        sys.stdout.flush()
    except BaseException:
        code = EXIT_EXCEPTION
    os._exit(code)


def _run_calls(request: dict) -> None:
    write, dumps, clock, leave = os.write, values.dumps, time.perf_counter, os._exit

    def send(data: bytes) -> None:
        data += b"\n"
        while data:
            data = data[write(CHANNEL, data) :]

    try:
        namespace = _load(request, "solution")
        if request.get("solution_class") and "Solution" in namespace:
            function = getattr(namespace["Solution"](), request["function"])
        else:
            function = namespace[request["function"]]
    except BaseException as error:
        send(json.dumps({"error": type(error).__name__}).encode())
        leave(EXIT_EXCEPTION)
    send(b'{"ready":true}')
    for form in request["inputs"]:
        try:
            arguments = values.decode(form)
            start = clock()
            result = dumps(function(*arguments))
            send(b'{"s":%f,"v":' % (clock() - start) + result + b"}")
        except BaseException as error:
            send(json.dumps({"error": str(type(error).__name__)}).encode())
    leave(0)
