"""What the template does before its first fork: it leaves no trace, and it makes children cheaper."""

import subprocess
import sys
from pathlib import Path

from azr_overrides.sandbox.template import protocol, rehearsal
from tests.sandbox_support import open_descriptors

SANDBOX = Path(rehearsal.__file__).parent.parent

# Prints the page faults of a child that answers the rehearsal's request: of a plain template, of a prepared one.
COUNT_FAULTS = """
import marshal, os, re, socket, sys, typing
sys.path.append(sys.argv[1])
from template import child, memory, protocol, rehearsal

def page_faults():
    ours, theirs = socket.socketpair()
    text = marshal.dumps(rehearsal.REQUEST)
    ours.sendall(protocol.REQUEST_LENGTH.pack(len(text)) + text)
    pid = os.fork()
    if pid == 0:
        child.serve(theirs.fileno())
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    return usage.ru_minflt

plain = min(page_faults() for _ in range(5))
rehearsal.rehearse()
memory.settle()
print(plain, min(page_faults() for _ in range(5)))
"""


def test_the_rehearsal_ends_as_a_child_would():
    parser = protocol.FrameParser(len(rehearsal.REQUEST["inputs"]), 1000)
    parser.feed(rehearsal.rehearse(rounds=1))
    parser.finish()
    tags = [tag for tag, _ in parser.frames]
    assert tags == [protocol.OK] * 3 + [protocol.EXCEPTION, protocol.BAD_INPUT]
    assert parser.frames[3][1] == "Odd\n: 99"


def test_the_rehearsal_leaves_no_module_and_no_descriptor():
    modules, descriptors = set(sys.modules), open_descriptors()
    rehearsal.rehearse()
    assert set(sys.modules) == modules
    assert open_descriptors() == descriptors


def test_a_prepared_template_has_cheaper_children():
    command = [sys.executable, "-S", "-s", "-P", "-B", "-c", COUNT_FAULTS, str(SANDBOX)]
    plain, prepared = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert prepared < 0.95 * plain
