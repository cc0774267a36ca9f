# Sourced by recipes and by the tests: the Python environment of this checkout, made once and reused.
#
#   ensure_environment cpu [dev]   .venv with the CPU stack (and the test tools); sets $PYTHON
#
# POPULORA_PYTHON names the interpreter to make it with (default python3, 3.11 or newer).

REPO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
PYTHON="$REPO_ROOT/.venv/bin/python"

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
