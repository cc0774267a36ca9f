#!/usr/bin/env bash
# The paper's setting: Qwen2.5-Coder-7B, 4 teachers and 4 students of rank 32, 200 steps.
#
#   bash recipes/azr_coder7b.sh [--dry-run] [OVERRIDE ...]        e.g. population=1t1s trainer.total_training_steps=20
#
# The same command resumes. MODEL, POPULATION (default 4t4s), RUN_DIR, STEPS (200), GPUS (4), NODES (1) and PYTHON are
# read from the environment (recipes/lib/train.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/train.sh"
source "$REPO_ROOT/recipes/lib/paper.sh"

paper_model Qwen/Qwen2.5-Coder-7B 4 1
train azr_coder7b 4t4s "$@"
