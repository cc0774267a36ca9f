#!/usr/bin/env bash
# Submit a recipe, or an evaluation, to SLURM.
#
#   bash recipes/slurm/submit.sh RECIPE --nodes N --gpus G --time T [--dry-run] [SBATCH OPTION ...] [OVERRIDE ...]
#   bash recipes/slurm/submit.sh eval --nodes N --gpus G --time T [--dry-run] [--SBATCH=OPTION ...] RUN [-- EVAL OPTION ...]
#
#   RECIPE   a file of recipes/, with or without .sh, for example azr_coder7b
#   G        GPUs of each node; 0 asks for none
#   T        the limit of one start in SLURM's form, for example 04:00:00; the job goes on after it
#
# Options of sbatch are passed on when they are written with `=`: --partition=gpu --account=x --exclusive=user.
# --dry-run prints the command of sbatch and what the recipe would run, and submits nothing. The recipe's environment
# variables (MODEL, POPULATION, RUN_DIR, ...) and those of recipes/slurm/lib/*.sh (CONTAINER, HEAD_IP, ...) are passed on.
#
#   GRACE   seconds before the limit at which the run is asked to save and end: more than a step takes   (default 900)
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/../lib/environment.sh"

[[ "${1:-}" != -h && "${1:-}" != --help ]] || { usage; exit 0; }
[[ $# -ge 1 && "$1" != -* ]] || { usage >&2; exit 2; }
what="$1"
shift
nodes='' gpus='' limit='' dry_run=false options=() arguments=()
while (($#)); do
    case "$1" in
        --nodes | --gpus | --time)
            [[ $# -ge 2 ]] || { echo "error: $1 needs a value" >&2; exit 2; }
            case "$1" in --nodes) nodes="$2" ;; --gpus) gpus="$2" ;; --time) limit="$2" ;; esac
            shift
            ;;
        --nodes=*) nodes="${1#*=}" ;;
        --gpus=*) gpus="${1#*=}" ;;
        --time=*) limit="${1#*=}" ;;
        --dry-run) dry_run=true ;;
        --) shift; arguments+=("$@"); break ;;
        --*) options+=("$1") ;;
        *) arguments+=("$1") ;;
    esac
    shift
done
[[ "$nodes" =~ ^[1-9][0-9]*$ ]] || { echo "error: --nodes must be a number from 1 on, not '$nodes'" >&2; exit 2; }
[[ "$gpus" =~ ^[0-9]+$ ]] || { echo "error: --gpus must be a number, not '$gpus'" >&2; exit 2; }
[[ -n "$limit" ]] || { echo "error: --time is missing, for example --time 04:00:00" >&2; exit 2; }

grace="${GRACE:-900}"
export POPULORA_ROOT="$REPO_ROOT" NODES="$nodes" GPUS="$gpus" GRACE="$grace"
# This shell's interpreter is not the choice of the caller.
if [[ -n "$CALLERS_PYTHON" ]]; then export PYTHON="$CALLERS_PYTHON"; fi
command=(sbatch "--nodes=$nodes" "--time=$limit" "--signal=B:USR1@$grace" --export=ALL
    "--output=$REPO_ROOT/runs/slurm/%j.log")
((gpus == 0)) || command+=("--gpus-per-node=$gpus")
command+=(${options[@]+"${options[@]}"})
check=()
if [[ "$what" == eval ]]; then
    ((${#arguments[@]})) || { echo "error: name the run to evaluate" >&2; exit 2; }
    command+=("$REPO_ROOT/recipes/slurm/eval.sbatch")
    check=(bash "$REPO_ROOT/recipes/eval_population.sh")
else
    recipe="$what"
    [[ -f "$recipe" ]] || recipe="$REPO_ROOT/recipes/${what%.sh}.sh"
    [[ -f "$recipe" ]] || { echo "error: there is no recipe $what (no $recipe)" >&2; exit 2; }
    RECIPE="$(realpath "$recipe")"
    export RECIPE
    command+=("$REPO_ROOT/recipes/slurm/train.sbatch")
    check=(bash "$RECIPE")
fi
command+=(${arguments[@]+"${arguments[@]}"})
if $dry_run; then
    print_command "${command[@]}"
    exec env ${CALLERS_PYTHON:+PYTHON="$CALLERS_PYTHON"} "${check[@]}" ${arguments[@]+"${arguments[@]}"} --dry-run
fi
mkdir -p "$REPO_ROOT/runs/slurm"
exec "${command[@]}"
