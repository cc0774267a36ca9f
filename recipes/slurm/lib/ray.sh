# Sourced after job.sh: a Ray cluster on the nodes of the job. A signal meanwhile leaves it unfinished.
#
# Read from the environment:
#   HEAD_IP           address of the first node that the others reach   (default its first one)
#   CLUSTER_TIMEOUT   seconds until all nodes have to be there   (default 300)
#   GPUS              GPUs of a node
#   RAY_NODE_OPTIONS  further options of `ray start`

# Other jobs may run on the same nodes. Each looks from a place of its own on, below the ports that the system hands out
# and in steps of 16, and takes what is free.
first_port() { echo "$((20000 + SLURM_JOB_ID % 768 * 16))"; }

RAY_STEP=
start_ray() {
    # Ray lets in who knows the token; the one in a user's home would be the same for all jobs and need not be shared.
    RAY_AUTH_MODE=token
    RAY_AUTH_TOKEN="$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')"
    export RAY_AUTH_MODE RAY_AUTH_TOKEN
    export HEAD_IP="${HEAD_IP:-$(hostname -I | cut -d' ' -f1)}"
    FIRST_PORT="$(first_port)"
    export FIRST_PORT RAY_NODE_OPTIONS="${RAY_NODE_OPTIONS:-}"
    HEAD_PORT="$("$POPULORA_ROOT/recipes/slurm/free_ports.sh" 1 "$FIRST_PORT")"
    export HEAD_PORT RAY_ADDRESS="$HEAD_IP:$HEAD_PORT"
    echo "starting Ray at $RAY_ADDRESS on $SLURM_JOB_NUM_NODES nodes ($SLURM_JOB_NODELIST); logs in $LOGS"
    rm -f "$LOGS/stop-ray"
    on_all_nodes ray bash recipes/slurm/ray_node.sh
    "${STEP[@]}" &
    RAY_STEP=$!
    on_first_node "$PYTHON" recipes/slurm/wait_for_ray.py --address "$RAY_ADDRESS" --gpus "$GPUS" --logs "$LOGS" \
        --timeout "${CLUSTER_TIMEOUT:-300}" --nodes "$(scontrol show hostnames "$SLURM_JOB_NODELIST" | paste -sd,)"
    "${STEP[@]}" &
    local check=$!
    local status=0
    wait -n "$RAY_STEP" "$check" || status=$?
    if $SIGNALLED; then
        kill "$check" 2>/dev/null || true
        return 0
    fi
    if ! kill -0 "$RAY_STEP" 2>/dev/null; then
        echo "error: Ray ended while it was starting; see $LOGS/ray-*.log" >&2
        kill "$check" 2>/dev/null || true
        return 1
    fi
    ((status == 0))
}

# End Ray on all nodes: asked first, by a file, since a signal to srun kills its tasks; by force after 30 seconds.
stop_ray() {
    [[ -n "$RAY_STEP" ]] || return 0
    touch "$LOGS/stop-ray"
    local waited
    for ((waited = 0; waited < 30; waited++)); do
        kill -0 "$RAY_STEP" 2>/dev/null || break
        sleep 1
    done
    kill -TERM "$RAY_STEP" 2>/dev/null || true
    wait "$RAY_STEP" 2>/dev/null || true
    RAY_STEP=
}
