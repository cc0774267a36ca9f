"""LiveCodeBench's tests: plain JSON, or JSON in a pickled string in zlib in base64.

Unpickling runs code by design. A genuine file pickles one string, so every reference to a global is refused.
"""

import base64
import binascii
import io
import json
import pickle
import zlib
from dataclasses import dataclass

_MAX_UNPACKED = 1 << 30  # bytes; the largest genuine problem unpacks to well under this


class BadTests(ValueError):
    """The tests of a problem can't be decoded."""


@dataclass(frozen=True, slots=True)
class LcbTest:
    input: str
    output: str


class _StringsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"refused to load {module}.{name}")

    def persistent_load(self, pid: object) -> object:
        raise pickle.UnpicklingError("refused a persistent reference")


def decode_tests(text: str) -> list[LcbTest]:
    """Raises BadTests, also for a pickle that holds anything but one string."""
    try:
        rows = json.loads(text)
    except json.JSONDecodeError:
        rows = _decode_packed(text)
    try:
        return [LcbTest(row["input"], row["output"]) for row in rows]
    except (TypeError, KeyError) as error:
        raise BadTests(f"not a list of tests: {error!r}") from error


def _decode_packed(text: str) -> list:
    try:
        inflater = zlib.decompressobj()
        packed = inflater.decompress(base64.b64decode(text, validate=True), _MAX_UNPACKED)
        if inflater.unconsumed_tail:
            raise BadTests("the tests unpack to more than 1 GiB")
        content = _StringsOnly(io.BytesIO(packed)).load()
        if not isinstance(content, str):
            raise BadTests(f"the pickle holds a {type(content).__name__}, not a string")
        return json.loads(content)
    except (
        binascii.Error,
        zlib.error,
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        IndexError,
        KeyError,
    ) as error:
        raise BadTests(f"tests can't be decoded: {error}") from error
