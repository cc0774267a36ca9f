"""The runs of a study or another experiment: one experiment to a directory, each run a process with a log."""

import contextlib
import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_populora.rundir import RunDirError, RunReader


class StudyError(ValueError):
    """The study can't run as it was asked for; the message says what to do."""


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Keep other studies out of ``out``; the lock ends with this process, however it ends.

    Raises:
        StudyError: another study holds it.
    """
    out.mkdir(parents=True, exist_ok=True)
    with open(out / ".lock", "a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise StudyError(
                f"another study (process {file.read().strip()}) writes to {out}; wait for it or use another directory"
            ) from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def is_trained(run_dir: Path, steps: int) -> bool:
    """Whether a run has ended by itself at its last step."""
    try:
        reader = RunReader(run_dir)
        history = reader.metrics()
        return reader.run_info().get("exit_reason") == "finished" and bool(history) and history[-1]["step"] >= steps
    except RunDirError:
        return False


def run_logged(command: Sequence[str], log: Path) -> int:
    """Run a command with its output appended to ``log``; its whole process group is gone afterwards.

    A KeyboardInterrupt asks it to end after its current step, waits for that, and is raised again; a second one ends it
    at once.
    """
    with open(log, "ab") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            return process.wait()
        except KeyboardInterrupt:
            process.terminate()
            process.wait()
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
