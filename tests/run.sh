#!/usr/bin/env bash
# Install what is missing and run all checks and tests. Arguments go to pytest: bash tests/run.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/lib/environment.sh
# The files of requirements-ci.txt are those of one platform and interpreter.
if [[ "${CI:-}" == true && "$(uname -sm)" == "Linux x86_64" ]] &&
    "${POPULORA_PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then
    ensure_environment ci cpu dev
else
    ensure_environment cpu dev
fi

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m pyright
exec "$PYTHON" -m pytest "$@"
