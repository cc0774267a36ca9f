#!/usr/bin/env bash
# The paper's setting on Qwen2.5-14B; MODEL=Qwen/Qwen2.5-Coder-14B is its code counterpart.
#
#   bash recipes/azr_14b.sh [--dry-run] [OVERRIDE ...]        e.g. population=1t1s trainer.total_training_steps=20
#
# The same command resumes. MODEL, POPULATION (default 4t4s), RUN_DIR, STEPS (200), GPUS (8), NODES (1) and PYTHON are
# read from the environment (recipes/lib/train.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/train.sh"
source "$REPO_ROOT/recipes/lib/paper.sh"

paper_model Qwen/Qwen2.5-14B 8 2
train azr_14b 4t4s "$@"
