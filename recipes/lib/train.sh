# Sourced by training recipes: the command line that they have in common. A recipe states what it is about in
# OVERRIDES and ends with `train NAME DEFAULT_POPULATION "$@"`.
#
# Read from the environment:
#   MODEL        base model: a folder or a name on the hub
#   POPULATION   single, 1t1s, 2t2s, 4t4s or 8t8s; the override population= does the same
#   RUN_DIR      where to write; an existing run there is resumed   (default runs/NAME-POPULATION)
#   STEPS, GPUS, NODES   training steps, GPUs of a node, nodes
#   PYTHON       interpreter   (default .venv/bin/python of this checkout if it is there, else python3)
#
# Overrides of the caller come last, so that they win over all of these.
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
use_python
cd "$REPO_ROOT" || exit

# Composes the command, prints it when asked with --dry-run, and becomes it: signals reach the trainer itself.
train() {
    local name="$1" population="${POPULATION:-$2}"
    shift 2
    local overrides=() argument dry_run=false
    for argument in "$@"; do
        case "$argument" in
            -h | --help) usage; exit 0 ;;
            --dry-run) dry_run=true ;;
            # Hydra takes one choice of a group.
            population=*) population="${argument#population=}" ;;
            *) overrides+=("$argument") ;;
        esac
    done
    local command=("$PYTHON" -m azr_overrides.main "population=$population" "${OVERRIDES[@]}"
        "run_dir=${RUN_DIR:-runs/$name-$population}" ${overrides[@]+"${overrides[@]}"})
    if $dry_run; then
        print_command "${command[@]}"
        command+=(--dry-run)
    fi
    exec "${command[@]}"
}
