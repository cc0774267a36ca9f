# Sourced by the batch scripts: steps of the job, in a container or not, and requeueing.
#
# Read from the environment (submit.sh sets the first three):
#   POPULORA_ROOT      this checkout, on a file system that all nodes share
#   GRACE              seconds between SLURM's signal and the time limit
#   MAX_REQUEUES       how often the job may start again   (default 50)
#   LOGS               folder for the log files of nodes   (default runs/slurm/JOB of the checkout)
#   CONTAINER          image to run in   (default none)
#   CONTAINER_RUNTIME  apptainer, or enroot (through SLURM's pyxis plugin)   (default apptainer)
#   CONTAINER_OPTIONS  further options of `apptainer exec`, or of srun with pyxis
#   PYTHON             interpreter, inside the container if there is one
cd "$POPULORA_ROOT" || exit
LOGS="${LOGS:-$POPULORA_ROOT/runs/slurm/$SLURM_JOB_ID}"
mkdir -p "$LOGS" || exit
if [[ -z "${PYTHON:-}" ]]; then
    PYTHON=python3
    if [[ -z "${CONTAINER:-}" && -x "$POPULORA_ROOT/.venv/bin/python" ]]; then PYTHON="$POPULORA_ROOT/.venv/bin/python"; fi
fi
export PYTHON LOGS

_step_options=(--overlap --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-1}}")
_inside=()
read -ra _extra <<<"${CONTAINER_OPTIONS:-}"
if [[ -n "${CONTAINER:-}" ]]; then
    case "${CONTAINER_RUNTIME:-apptainer}" in
        apptainer)
            _inside=(apptainer exec --nv --bind "$POPULORA_ROOT,/tmp" --pwd "$POPULORA_ROOT" "${_extra[@]}" "$CONTAINER")
            ;;
        enroot)
            _step_options+=("--container-image=$CONTAINER" "--container-workdir=$POPULORA_ROOT"
                "--container-mounts=$POPULORA_ROOT:$POPULORA_ROOT,/tmp:/tmp" "${_extra[@]}")
            ;;
        *) echo "error: CONTAINER_RUNTIME=$CONTAINER_RUNTIME; choose apptainer or enroot" >&2; exit 2 ;;
    esac
fi

# Both set STEP to the command of a step, rather than run it: in the background, signals have to reach srun and no shell
# around it.
#
# on_all_nodes NAME COMMAND: one task on every node, each with a log file of its own, NAME-<node>.log.
on_all_nodes() {
    local name="$1"
    shift
    STEP=(srun "${_step_options[@]}" "--nodes=$SLURM_JOB_NUM_NODES" "--ntasks=$SLURM_JOB_NUM_NODES" --ntasks-per-node=1
        bash -c 'exec >>"$LOGS/$0-$SLURMD_NODENAME.log" 2>&1 && exec "$@"' "$name" "${_inside[@]}" "$@")
}

# on_first_node COMMAND: one task on the node that this script runs on; its output goes to the job's.
on_first_node() {
    STEP=(srun "${_step_options[@]}" --nodes=1 --ntasks=1 "--nodelist=$SLURMD_NODENAME" "${_inside[@]}" "$@")
}

# SLURM's signal before the limit, or before a preemption, can come at any time; without this it would end the job.
SIGNALLED=false
trap 'SIGNALLED=true' USR1 TERM

# Whether this start has kept something, so that the next one begins further on. A batch script defines its own.
made_progress() { false; }

# Start the same job again, which resumes. Two starts in a row that kept nothing would be followed by a third like them.
requeue() {
    # A job that was cancelled, or that the watchdog below has requeued, stays what it is.
    scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING || exit 1
    local file="$LOGS/$SLURM_JOB_ID.starts-without-progress" starts=0
    if made_progress; then
        rm -f "$file"
    else
        if [[ -e "$file" ]]; then starts=$(<"$file"); fi
        echo "$((++starts))" >"$file"
        if ((starts >= 2)); then
            echo "error: $starts starts in a row saved nothing at their signal: the start and one step take longer than" \
                "--time less GRACE ($GRACE s), or one step takes longer than GRACE; raise them" >&2
            exit 1
        fi
    fi
    if ((${SLURM_RESTART_COUNT:-0} >= ${MAX_REQUEUES:-50})); then
        echo "error: started again ${SLURM_RESTART_COUNT} times already; raise MAX_REQUEUES to go on" >&2
        exit 1
    fi
    echo "requeueing job $SLURM_JOB_ID"
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

# run_until_signal COMMAND: runs it and returns its exit code. The signal is passed on once and sets SIGNALLED; what does
# not end in time is ended by a requeue a minute before the limit. After the signal nothing more is started.
run_until_signal() {
    local child status=0 watchdog=
    if $SIGNALLED; then return 143; fi
    "$@" &
    child=$!
    # shellcheck disable=SC2064  # the child's number is the one of now
    trap "SIGNALLED=true; kill -USR1 $child 2>/dev/null || true" USR1 TERM
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
        if $SIGNALLED && [[ -z "$watchdog" ]]; then
            echo "SLURM's signal came: the run ends after this step, then job $SLURM_JOB_ID is requeued"
            (sleep "$((GRACE > 120 ? GRACE - 60 : GRACE / 2))" && requeue) &
            watchdog=$!
        fi
    done
    trap 'SIGNALLED=true' USR1 TERM
    if [[ -n "$watchdog" ]]; then kill "$watchdog" 2>/dev/null || true; fi
    return "$status"
}
