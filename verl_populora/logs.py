"""This project's log messages in the processes of a run."""

import logging

PACKAGES = ("verl_populora", "azr_overrides")


def show_messages(level: int = logging.INFO) -> None:
    """Write this project's messages from ``level`` on to the process's standard error.

    In a worker process that is Ray's log file of it. A dependency of vLLM sets the root logger and its handlers to
    ERROR when it is imported, so neither the root's level nor its handlers are relied on. Calling it again changes only
    the level.
    """
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(level)
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
            logger.addHandler(handler)
        logger.propagate = False
