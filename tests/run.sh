#!/usr/bin/env bash
# Install what is missing and run all checks and tests. Arguments go to pytest: bash tests/run.sh -m "not slow"
set -euo pipefail
cd "$(dirname "$0")/.."
source recipes/lib/environment.sh
ensure_environment cpu dev

"$PYTHON" -m ruff check .
"$PYTHON" -m ruff format --check .
"$PYTHON" -m pyright
exec "$PYTHON" -m pytest "$@"
