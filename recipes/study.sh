#!/usr/bin/env bash
# Compare the single agent, populations of several sizes and ablations over several seeds, on the tiny base and a CPU.
#
#   bash recipes/study.sh OUT [OVERRIDE ...] [--dry-run]
#
#   STUDY_SIZE     smoke: about 20 minutes on two cores, shows that all works; short: about an hour and a half,
#                  25 steps; overnight: 155 steps   (default short)
#   STUDY_ARMS     which arms, e.g. "single 4t4s 4t4s-no-evolution ablations"   (default: single 1t1s 4t4s; overnight
#                  also 2t2s; a wrong name lists all)
#   STUDY_SEEDS    how many seeds   (default: 3; smoke 2)
#   STUDY_LR       learning rate of all arms   (default: 5e-3; overnight 1e-3)
#   STUDY_BUDGET   total: all arms generate as many samples a step; per_adapter: each adapter as many as the single
#                  agent's one   (default total)
#
# Each run is OUT/<arm>-seed<number>. The same command skips finished runs and continues interrupted ones. It ends with
# OUT/report/report.html, OUT/summary.md (means and 95% intervals over seeds) and OUT/summary.json. Makes .venv at the
# first call.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
source "$REPO_ROOT/recipes/tiny_base/preset.sh"

usage() { sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$REPO_ROOT/recipes/study.sh"; }
case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    "" | -* | *=*) usage >&2; exit 2 ;;
esac
out="$(realpath -m "$1")"
shift
ensure_environment cpu
cd "$REPO_ROOT"

options=(--size "${STUDY_SIZE:-short}" --budget "${STUDY_BUDGET:-total}")
[[ -n "${STUDY_ARMS:-}" ]] && options+=(--arms "$STUDY_ARMS")
[[ -n "${STUDY_LR:-}" ]] && options+=(--learning-rate "$STUDY_LR")
[[ -n "${STUDY_SEEDS:-}" ]] && options+=(--seeds "$STUDY_SEEDS")
overrides=()
for argument in "$@"; do
    if [[ "$argument" == --dry-run ]]; then options+=(--dry-run); else overrides+=("$argument"); fi
done

# 27 proposals and about 160 samples a step for the single agent, and as many for all sizes of population: 8 proposals of
# each of 4 teachers, 32 of one.
exec "$PYTHON" -m recipes.study "${options[@]}" -- "$out" "${TINY_OVERRIDES[@]}" \
    data.train_batch_size=9 \
    azr.reward.n_samples=4 \
    ${overrides[@]+"${overrides[@]}"}
