"""Reports about runs: ``python -m verl_populora.report RUN_DIR...``."""
