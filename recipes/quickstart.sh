#!/usr/bin/env bash
# Train a small population on this machine's CPU, with real Ray, verl and vLLM, and make its report page.
#
#   bash recipes/quickstart.sh [--dry-run] [OVERRIDE ...]        e.g. population=4t4s trainer.total_training_steps=40
#
# Makes .venv at the first call. RUN_DIR names where to write (default: runs/quickstart-<population>-<time>; in a SLURM
# job its number takes the place of the time, so that the job goes on there when it is requeued). NODES, which
# recipes/slurm/submit.sh sets, spreads the run over that many nodes, with one training process and one engine on each.
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/lib/environment.sh
source recipes/tiny_base/preset.sh

population=2t2s dry_run=false overrides=()
for argument in "$@"; do
    case "$argument" in
        --dry-run) dry_run=true ;;
        population=*) population="${argument#population=}" ;;
        *) overrides+=("$argument") ;;
    esac
done
run_dir="${RUN_DIR:-runs/quickstart-$population-${SLURM_JOB_ID:-$(date +%Y%m%d-%H%M%S)}}"

if $dry_run; then use_python; else ensure_environment cpu; fi
command=("$PYTHON" -m azr_overrides.main "${TINY_OVERRIDES[@]}"
    "population=$population"
    population.evolution.interval=8
    trainer.total_training_steps=16
    trainer.save_freq=8
    "trainer.nnodes=${NODES:-1}"
    "run_dir=$run_dir"
    ${overrides[@]+"${overrides[@]}"})
if $dry_run; then
    print_command "${command[@]}"
    exec "${command[@]}" --dry-run
fi
stopped=false
forward_signals stopped "${command[@]}"
"$PYTHON" -m verl_populora.report "$run_dir"
echo "run directory: $run_dir"
