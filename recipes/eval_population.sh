#!/usr/bin/env bash
# All ten benchmarks for the base, a baseline and every member of a population, in one job.
#
#   bash recipes/eval_population.sh RUN_OR_CHECKPOINT [options of `python -m eval run`]
#   sbatch --gres=gpu:4 recipes/eval_population.sh RUN_OR_CHECKPOINT ...
#
# Every GPU of the machine runs its own engine with all adapters on a part of the completions; the parts meet in the
# files of OUT. With several nodes start it under srun: each task takes its part by its SLURM number, and only the
# first one grades. A stopped job goes on where it was when it is started again.
#
#   BASE        base model: a folder or a name on the hub   (default Qwen/Qwen2.5-Coder-7B)
#   OUT         result directory                            (default outputs/eval/NAME_OF_THE_RUN)
#   BASELINE    PEFT folder or single-agent run             (default none)
#   BENCHMARKS  all, code, math or a list                   (default all)
#   PROFILE     parity or fixed                             (default parity)
#   DATA_DIR    benchmark files                             (default: fetched into the user's cache)
#   GPUS        engines on this machine                     (default: all GPUs, 1 without)
#   PYTHON      interpreter                                 (default .venv/bin/python if it is there, else python)
set -euo pipefail

usage() { sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0"; }

if [[ $# -lt 1 || $1 == -h || $1 == --help ]]; then
    usage
    [[ $# -ge 1 ]] && exit 0 || exit 2
fi
population=$1
shift
dry_run=false
options=()
for argument in "$@"; do
    if [[ $argument == --dry-run ]]; then dry_run=true; else options+=("$argument"); fi
done

root=${SLURM_SUBMIT_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
if [[ -z ${PYTHON:-} ]]; then
    if [[ -x $root/.venv/bin/python ]]; then PYTHON=$root/.venv/bin/python; else PYTHON=python; fi
fi
base=${BASE:-Qwen/Qwen2.5-Coder-7B}
out=${OUT:-outputs/eval/$(basename "$population")}
benchmarks=${BENCHMARKS:-all}
profile=${PROFILE:-parity}
data=()
[[ -n ${DATA_DIR:-} ]] && data=(--data-dir "$DATA_DIR")

count_gpus() { nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | wc -l; }
gpus=${GPUS:-$(count_gpus || true)}
((gpus > 0)) || gpus=1

command=("$PYTHON" -m eval run --base "$base" --population "$population" --benchmarks "$benchmarks"
    --profile "$profile" "${data[@]}" -o "$out")
[[ -n ${BASELINE:-} ]] && command+=(--baseline "$BASELINE")
command+=("${options[@]}")

nodes=${SLURM_NTASKS:-1}
node=${SLURM_PROCID:-0}
parts=$((nodes * gpus))

if $dry_run; then
    for ((gpu = 0; gpu < gpus; gpu++)); do
        printf 'CUDA_VISIBLE_DEVICES=%s' "$gpu"
        printf ' %q' "${command[@]}" --shard "$((node * gpus + gpu))/$parts"
        echo
    done
    printf '%q ' "$PYTHON" -m eval grade "${data[@]}" -o "$out" && echo
    printf '%q ' "$PYTHON" -m eval table "$out" && echo
    exit 0
fi

if ((node == 0)) && [[ -z ${DATA_DIR:-} ]]; then
    "$PYTHON" -m eval fetch-data --benchmarks "$benchmarks"
fi

mkdir -p "$out/logs"
pids=()
stop_children() {
    trap - INT TERM
    ((${#pids[@]})) && kill -TERM "${pids[@]}" 2>/dev/null || true
    wait || true
    exit 130
}
trap stop_children INT TERM
for ((gpu = 0; gpu < gpus; gpu++)); do
    part=$((node * gpus + gpu))
    if ((gpus == 1)); then
        "${command[@]}" --shard "$part/$parts" &
    else
        CUDA_VISIBLE_DEVICES=$gpu "${command[@]}" --shard "$part/$parts" >"$out/logs/part-$part.log" 2>&1 &
    fi
    pids+=($!)
done
failed=0
for pid in "${pids[@]}"; do wait "$pid" || failed=1; done
if ((failed)); then
    echo "a part failed; see $out/logs, then start the same command again" >&2
    exit 1
fi
trap - INT TERM

if ((node == 0 && nodes == 1)); then
    "$PYTHON" -m eval grade "${data[@]}" -o "$out"
    "$PYTHON" -m eval table "$out"
elif ((node == 0)); then
    echo "when all $nodes tasks are done: $PYTHON -m eval grade -o $out && $PYTHON -m eval table $out"
fi
