#!/usr/bin/env bash
# Does a larger population pay? One run for each size, one after the other, then one report over all of them.
#
#   bash recipes/ablate_population.sh OUT [--dry-run] [OVERRIDE ...]
#
#   RECIPE        recipe of each run, in recipes/   (default azr_coder7b.sh)
#   POPULATIONS   sizes   (default "1t1s 4t4s 8t8s"; "single 1t1s 4t4s 8t8s" adds the single agent)
#   EVAL          true: also the ten benchmarks for every run, and one table (eval_population.sh)   (default false)
#
# Runs are OUT/<population>, the report is OUT/report/report.html. The same command skips finished runs and continues an
# interrupted one. By default every adapter generates as many samples as the single agent's one, so that larger
# populations cost more; with population.budget=total all runs cost the same. A claim has to say which. Exit code 75:
# stopped on request, as a single run.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/lib/environment.sh"
use_python

case "${1:-}" in
    -h | --help) usage; exit 0 ;;
    "" | -* | *=*) usage >&2; exit 2 ;;
esac
out="$(realpath -m "$1")"
shift
dry_run=false
for argument in "$@"; do
    case "$argument" in
        --dry-run) dry_run=true ;;
        population=*) echo "error: sizes are in the environment variable POPULATIONS, not in population=" >&2; exit 2 ;;
        run_dir=*) echo "error: run directories are OUT/<population>; leave run_dir out" >&2; exit 2 ;;
    esac
done
recipe="$REPO_ROOT/recipes/${RECIPE:-azr_coder7b.sh}"
[[ -f "$recipe" ]] || { echo "error: RECIPE=$RECIPE: there is no $recipe" >&2; exit 2; }
read -ra populations <<<"${POPULATIONS:-1t1s 4t4s 8t8s}"
cd "$REPO_ROOT"

stopped=false runs=()
for population in "${populations[@]}"; do
    runs+=("$out/$population")
    command=(bash "$recipe" "population=$population" "run_dir=$out/$population" "$@")
    if $dry_run; then
        "${command[@]}"
        continue
    fi
    # Other overrides (more steps, say) make it a run to be continued.
    finished="$out/$population.finished"
    if [[ -f "$finished" && "$(<"$finished")" == "${*@Q}" ]]; then
        echo "$population is finished"
        continue
    fi
    echo "$population goes to $out/$population"
    status=0
    forward_signals stopped "${command[@]}" || status=$?
    ((status == 0)) || exit "$status"
    echo "${*@Q}" >"$finished"
    if $stopped; then exit 75; fi
done

report=("$PYTHON" -m verl_populora.report "${runs[@]}" -o "$out/report")
if $dry_run; then
    print_command "${report[@]}"
    exit 0
fi
"${report[@]}"
if [[ "${EVAL:-false}" == true ]]; then
    tables=()
    for population in "${populations[@]}"; do
        OUT="$out/eval/$population" bash recipes/eval_population.sh "$out/$population"
        tables+=("$population=$out/eval/$population")
    done
    "$PYTHON" -m eval table "${tables[@]}"
fi
