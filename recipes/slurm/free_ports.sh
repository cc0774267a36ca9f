#!/usr/bin/env bash
# COUNT ports of this machine that nobody listens on, from FIRST on: free_ports.sh COUNT FIRST
# HEAD_PORT, if set, is left out: the head of a job's cluster may not listen on it yet.
set -euo pipefail

count="$1" port="$2"
while ((count > 0)); do
    # Bash opens the connection; that nobody accepts it means that the port is free.
    if [[ "$port" != "${HEAD_PORT:-}" ]] && ! (: >"/dev/tcp/127.0.0.1/$port") 2>/dev/null &&
        ! (: >"/dev/tcp/${HEAD_IP:-127.0.0.1}/$port") 2>/dev/null; then
        echo "$port"
        ((count -= 1)) || true
    fi
    ((port += 1))
    ((port < 65536)) || { echo "error: no free port from $2 on" >&2; exit 1; }
done
