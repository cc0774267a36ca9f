#!/usr/bin/env bash
# How much of its parents' skill does a child of each variation operator keep, at birth and after some more training?
# On the tiny base and a CPU; about half an hour on two cores.
#
#   bash recipes/retention.sh OUT [--OPTION=VALUE ...] [OVERRIDE ...]      options: python -m recipes.retention --help
#
# The same command skips finished stages and continues interrupted ones. Makes .venv at the first call.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
source "$REPO_ROOT/recipes/tiny_base/preset.sh"

usage() { sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$REPO_ROOT/recipes/retention.sh"; }
case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    "" | -* | *=*) usage >&2; exit 2 ;;
esac
out="$(realpath -m "$1")"
shift
options=() overrides=()
for argument in "$@"; do
    if [[ "$argument" == --* ]]; then options+=("$argument"); else overrides+=("$argument"); fi
done
ensure_environment cpu
cd "$REPO_ROOT"

# Eight proposals of each teacher and four attempts at each of them a step.
exec "$PYTHON" -m recipes.retention "${options[@]}" -- "$out" "${TINY_OVERRIDES[@]}" \
    population.proposals_per_teacher=8 \
    ${overrides[@]+"${overrides[@]}"}
