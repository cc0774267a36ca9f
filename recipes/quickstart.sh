#!/usr/bin/env bash
# Train a small population on this machine's CPU, with real Ray, verl and vLLM, and make its report page.
#
#   bash recipes/quickstart.sh [OVERRIDE ...]        e.g. population=4t4s trainer.total_training_steps=40
#
# Makes .venv at the first call. RUN_DIR names where to write (default: runs/quickstart-<population>-<time>).
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/lib/environment.sh
source recipes/tiny_base/preset.sh
ensure_environment cpu

population=2t2s
for argument in "$@"; do
    [[ "$argument" == population=* ]] && population="${argument#population=}"
done
run_dir="${RUN_DIR:-runs/quickstart-$population-$(date +%Y%m%d-%H%M%S)}"

"$PYTHON" -m azr_overrides.main "${TINY_OVERRIDES[@]}" \
    population=2t2s \
    population.evolution.interval=8 \
    trainer.total_training_steps=16 \
    trainer.save_freq=8 \
    "run_dir=$run_dir" \
    "$@"
[[ " $* " == *" --dry-run "* ]] && exit 0
"$PYTHON" -m verl_populora.report "$run_dir"
echo "run directory: $run_dir"
