"""What a proposed program may not mention."""

import pytest

from azr_overrides.tasks.policy import DEFAULT_BANNED_WORDS, find_banned, find_nondeterminism, parse_program


@pytest.mark.parametrize(
    ("program", "words", "found"),
    [
        ("import random", ["random"], "random"),
        ("import numpy.random as r", ["random"], "random"),
        ("from x import random", ["random"], "random"),
        ("from datetime import date", ["datetime"], "datetime"),
        ("import os.path", ["os.path"], "os.path"),
        ("from os import path", ["os.path"], "os.path"),
        ("from os.path import join", ["os.path"], "os.path"),
        ("import os\nos.path.join('a')", ["os.path"], "os.path"),
        ("import os as o\no.path.join('a')", ["os.path"], "os.path"),
        ("import sys\nsys.exit(0)", ["sys.exit"], "sys.exit"),
        ("from sys import exit as leave", ["sys.exit"], "sys.exit"),
        ("import numpy as np\nnp.random.rand()", ["random"], "random"),
        ("__import__('random')", ["random"], "random"),
        ("import importlib\nimportlib.import_module('random')", ["random"], "random"),
        ("random(", ["random"], "random"),
        ("randomly(", ["random"], None),
        ("def f(x):\n    random = 3\n    return random", ["random"], None),
        ("import os", ["os.path"], None),
        ("import ospath", ["os.path"], None),
        ("import math\nmath.pi", ["random", "os.path"], None),
    ],
)
def test_banned_words(program, words, found):
    assert find_banned(program, words) == found


@pytest.mark.parametrize(
    ("program", "keyword", "found"),
    [
        ("def f(x):\n    raise ValueError", "raise", True),
        ("def f(x):\n    assert x", "raise", False),
        ("def f(x):\n    assert x", "assert", True),
        ("try:\n    pass\nexcept ValueError:\n    pass", "except", True),
        ("try:\n    pass\nfinally:\n    pass", "try", True),
    ],
)
def test_banned_keywords(program, keyword, found):
    assert (find_banned(program, (), (keyword,)) == keyword) is found


@pytest.mark.parametrize(
    "program",
    [
        "import time\nx = time.time()",
        "from time import time as t",
        "import uuid",
        "import secrets",
        "import os\nos.urandom(3)",
        "from os import getpid",
        "import datetime\ndatetime.datetime.now()",
        "from datetime import date as d\nd.today()",
        "id(object())",
        "hash('abc')",
        "sorted([], key=hash)",
        "eval('1')",
        "exec('1')",
        "__import__(name)",
        "__builtins__['id']",
        "import importlib",
        "import sys\nsys.modules['time']",
        "import builtins\nbuiltins.id",
        "(lambda: 0).__globals__",
        "''.__hash__()",
    ],
)
def test_what_changes_between_runs_is_found(program):
    assert find_nondeterminism(parse_program(program)) is not None


@pytest.mark.parametrize(
    "program",
    [
        "def f(id):\n    return id",
        "def hash(x):\n    return x\nhash(3)",
        "import datetime\ndatetime.date(2020, 1, 1)",
        "import math, re, collections, sys, os",
        "class A:\n    def now(self): return 1\nA().now()",
        "time = 3\ntime + 1",
    ],
)
def test_what_does_not_is_left_alone(program):
    assert find_nondeterminism(parse_program(program)) is None


@pytest.mark.parametrize("bomb", ["(" * 10_000, "-" * 100_000 + "1", "\0", "x = " + "[" * 5000, "a" * 100_000 + "("])
def test_bombs_are_syntax_errors(bomb):
    with pytest.raises(SyntaxError):
        parse_program(bomb)


def test_the_default_list_is_azr_s():
    assert {"random", "os.path", "sys.exit", "datetime", "hashlib"} <= set(DEFAULT_BANNED_WORDS)
