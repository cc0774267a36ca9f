#!/usr/bin/env bash
# The paper's setting on Qwen2.5-7B, a base that was not trained on code alone.
#
#   bash recipes/azr_7b.sh [--dry-run] [OVERRIDE ...]        e.g. population=1t1s trainer.total_training_steps=20
#
# The same command resumes. MODEL, POPULATION (default 4t4s), RUN_DIR, STEPS (200), GPUS (4), NODES (1) and PYTHON are
# read from the environment (recipes/lib/train.sh).
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/train.sh"
source "$REPO_ROOT/recipes/lib/paper.sh"

paper_model Qwen/Qwen2.5-7B 4 1
train azr_7b 4t4s "$@"
