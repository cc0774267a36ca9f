# Sourced by recipes and by the tests: the Python environment of this checkout, made once and reused.
#
#   ensure_environment cpu [dev]   .venv with the CPU stack (and the test tools); sets $PYTHON
#   use_python                     sets $PYTHON to what is there and installs nothing: the caller's, .venv's, python3
#   usage                          prints the comment at the top of the recipe
#   print_command COMMAND          as it can be pasted into a shell
#   forward_signals FLAG COMMAND   runs COMMAND, passes SIGTERM, SIGUSR1 and SIGINT on, and notes one in the variable FLAG
#
# POPULORA_PYTHON names the interpreter to make it with (default python3, 3.11 or newer).

REPO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
CALLERS_PYTHON="${PYTHON:-}"
PYTHON="$REPO_ROOT/.venv/bin/python"

use_python() {
    if [[ -n "$CALLERS_PYTHON" ]]; then PYTHON="$CALLERS_PYTHON"; elif [[ ! -x "$PYTHON" ]]; then PYTHON=python3; fi
}

usage() { sed -n '2,/^set -/{/^set -/!s/^# \{0,1\}//p}' "$0"; }

print_command() {
    echo "# command"
    printf '%q ' "$@"
    echo
}

forward_signals() {
    local -n flag="$1"
    shift
    local child name status
    # In a process group of its own the child gets a Ctrl-C once, from here, and does not start with SIGINT ignored.
    set -m
    "$@" &
    child=$!
    set +m
    for name in TERM USR1 INT; do
        # shellcheck disable=SC2064  # the child's number is the one of now
        trap "flag=true; kill -$name $child 2>/dev/null || true" "$name"
    done
    # A signal ends `wait` before the child has ended.
    while :; do
        status=0
        wait "$child" || status=$?
        kill -0 "$child" 2>/dev/null || break
    done
    trap - TERM USR1 INT
    return "$status"
}

ensure_environment() {
    local requirements=()
    local name
    for name in "$@"; do
        requirements+=("$REPO_ROOT/requirements-$name.txt")
    done
    if [[ ! -x "$PYTHON" ]]; then
        "${POPULORA_PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
            echo "error: Python 3.11 or newer is needed; set POPULORA_PYTHON to one" >&2
            return 1
        }
        echo "making $REPO_ROOT/.venv"
        "${POPULORA_PYTHON:-python3}" -m venv "$REPO_ROOT/.venv"
    fi
    local file stamp wanted
    for file in "${requirements[@]}"; do
        stamp="$REPO_ROOT/.venv/.$(basename "$file").installed"
        wanted="$(sha256sum "$file" | cut -d' ' -f1)"
        if [[ "$(cat "$stamp" 2>/dev/null || true)" != "$wanted" ]]; then
            echo "installing $(basename "$file") (once; a few minutes)"
            # The files are complete lists. Without --no-deps, vLLM would bring in torchvision, torchaudio and
            # torchcodec, whose CUDA builds can't be imported beside a CPU build of torch.
            "$PYTHON" -m pip install --quiet --no-deps --disable-pip-version-check -r "$file"
            echo "$wanted" > "$stamp"
        fi
    done
}
