"""Messages of the training processes, which import vLLM."""

import subprocess
import sys

SCRIPT = """
import logging
import azr_overrides.trainer  # with verl and vLLM
from verl_populora.logs import show_messages
show_messages()
show_messages()
logging.getLogger("azr_overrides.trainer").warning("a detector's finding")
logging.getLogger("verl_populora.trainer.population_trainer").info("a child was born")
logging.getLogger("some.library").info("chatter")
"""


def test_messages_are_written_once_whatever_libraries_do_to_the_root_logger():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("WARNING azr_overrides.trainer: a detector's finding") == 1
    assert done.stderr.count("INFO verl_populora.trainer.population_trainer: a child was born") == 1
    assert "chatter" not in done.stderr
