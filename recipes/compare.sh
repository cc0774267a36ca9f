#!/usr/bin/env bash
# Compare the single agent with a population: compute, wall-clock, curriculum, coverage, benchmarks.
#
#   bash recipes/compare.sh BASE_RUN POPULATION_RUN [--window N] [--eval DIR ...]
#       two existing run directories
#
#   bash recipes/compare.sh --train OUT [--dry-run] [OVERRIDE ...]
#       trains both, one after the other, with the same overrides, into OUT/single and OUT/population, then compares.
#       population=4t4s unless an override says otherwise; --tiny as the first override takes the tiny CPU base.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
export PYTHONPATH="$REPO_ROOT${PYTHONPATH:+:$PYTHONPATH}"
use_python

case "${1:-}" in
    -h|--help) usage; exit 0 ;;
    "") usage >&2; exit 2 ;;
    --train) ;;
    *) exec "$PYTHON" -m azr_overrides.compare "$@" ;;
esac

shift
[[ $# -ge 1 && "$1" != *=* ]] || { echo "error: --train needs a directory to write to" >&2; exit 2; }
out="$1"
shift
population=4t4s dry_run=false
overrides=()
for argument in "$@"; do
    case "$argument" in
        --dry-run) dry_run=true ;;
        --tiny) source "$REPO_ROOT/recipes/tiny_base/preset.sh"; overrides+=("${TINY_OVERRIDES[@]}") ;;
        population=*) population="${argument#population=}" ;;
        run_dir=*) echo "error: run directories are OUT/single and OUT/population; leave run_dir out" >&2; exit 2 ;;
        *) overrides+=("$argument") ;;
    esac
done
[[ "$population" != single ]] || { echo "error: the population to compare with can't be single" >&2; exit 2; }
train=("$PYTHON" -m azr_overrides.main ${overrides[@]+"${overrides[@]}"})
single=("${train[@]}" population=single "run_dir=$out/single")
several=("${train[@]}" "population=$population" "run_dir=$out/population")
compare=("$PYTHON" -m azr_overrides.compare "$out/single" "$out/population")
if $dry_run; then
    print_command "${single[@]}"
    "${single[@]}" --dry-run
    print_command "${several[@]}"
    "${several[@]}" --dry-run
    print_command "${compare[@]}"
    exit 0
fi
"${single[@]}"
"${several[@]}"
"${compare[@]}"
