#!/usr/bin/env bash
# One node of a job's Ray cluster; runs until it is told to stop. Started by lib/ray.sh through srun.
set -euo pipefail

temp="/tmp/ray-$SLURM_JOB_ID"
read -ra options <<<"$RAY_NODE_OPTIONS"
# Room for one node of the job, or for several where they share a machine.
mapfile -t ports < <(recipes/slurm/free_ports.sh 4 "$((FIRST_PORT + 1 + 4 * SLURM_NODEID % 12))")
# verl places training processes on GPUs of Ray's accounting; without any, one process on the CPU counts as one.
command=("$PYTHON" -m ray.scripts.scripts start --block --disable-usage-stats "--node-name=$SLURMD_NODENAME"
    "--num-gpus=$((GPUS > 0 ? GPUS : 1))" "--temp-dir=$temp"
    "--dashboard-agent-listen-port=${ports[0]}" "--dashboard-agent-grpc-port=${ports[1]}"
    "--runtime-env-agent-port=${ports[2]}")
if ((SLURM_PROCID == 0)); then
    command+=(--head "--node-ip-address=$HEAD_IP" "--port=$HEAD_PORT" --include-dashboard=false
        "--ray-client-server-port=${ports[3]}")
else
    command+=("--address=$RAY_ADDRESS")
fi
# A cluster to join is what Ray would take from this variable also for the head.
unset RAY_ADDRESS
# Told to stop, Ray would let its work drain for 30 seconds; the trainer has ended before.
export RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0

keep_logs() {
    mkdir -p "$LOGS/$SLURMD_NODENAME"
    cp -r "$temp"/session_latest/logs/. "$LOGS/$SLURMD_NODENAME/" 2>/dev/null || true
    rm -rf "$temp" || true
}
trap keep_logs EXIT

# Not exec: the logs are kept after Ray has ended, whatever ended it.
"${command[@]}" "${options[@]}" &
child=$!
trap 'kill -TERM $child 2>/dev/null || true' TERM INT
while kill -0 "$child" 2>/dev/null && [[ ! -e "$LOGS/stop-ray" ]]; do sleep 1; done
kill -TERM "$child" 2>/dev/null || true
# The first node to end must not look like a failure, or SLURM would kill the others.
wait "$child" || [[ -e "$LOGS/stop-ray" ]]
