#!/usr/bin/env bash
# Teach an Absolute Zero Reasoner checkout population=..., or take it back.
#
#   bash patches/apply.sh CHECKOUT            apply (idempotent)
#   bash patches/apply.sh --revert CHECKOUT   take back
#   --force                                   also for a commit that the patch was not made for
#
# The patch only adds lines: without population= on the command line, upstream runs as before.
set -euo pipefail

# The heads of upstream's branches master and paper.
known_commits="a82124e514e27692aa9860c5ee21dbf9d81e3bc5 41ed983cdf541cfcd2f963f33c055d50074f3c90"
patch_file="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/azr_population.patch"
entry="absolute_zero_reasoner/main_azr_ppo.py"
marker="azr_overrides.handover"

fail() { echo "error: $*" >&2; exit 1; }

force=no revert=no checkout=""
for argument in "$@"; do
  case "$argument" in
    --force) force=yes ;;
    --revert) revert=yes ;;
    -h|--help) sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"; exit 0 ;;
    -*) fail "unknown option $argument; see --help" ;;
    *) [ -z "$checkout" ] || fail "one checkout, please"; checkout="$argument" ;;
  esac
done
[ -n "$checkout" ] || fail "which checkout? usage: bash patches/apply.sh [--revert] [--force] CHECKOUT"
[ -f "$checkout/$entry" ] || fail "$checkout has no $entry, so it is not a checkout of Absolute Zero Reasoner"
cd "$checkout"

applied=no
if grep -q "$marker" "$entry"; then applied=yes; fi
if [ "$revert" = yes ]; then
  [ "$applied" = yes ] || { echo "$checkout: not applied, nothing to take back"; exit 0; }
  patch --quiet --reverse --strip=1 --no-backup-if-mismatch < "$patch_file"
  echo "$checkout: taken back"
  exit 0
fi
[ "$applied" = no ] || { echo "$checkout: already applied"; exit 0; }

commit="$(git rev-parse HEAD 2>/dev/null || echo "no git commit")"
if [ "$force" = no ] && [[ " $known_commits " != *" $commit "* ]]; then
  fail "$checkout is at $commit; the patch is made for $known_commits (--force applies it anyway)"
fi
patch --quiet --strip=1 --no-backup-if-mismatch < "$patch_file"
# The patch has no context, so where it landed is checked by what Python makes of the file.
python3 - "$entry" <<'PYTHON' || { patch --quiet --reverse --strip=1 --no-backup-if-mismatch < "$patch_file"; fail "$entry has another layout; nothing was changed"; }
import ast
import sys

tree = ast.parse(open(sys.argv[1], encoding="utf-8").read())
statements = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
expected = isinstance(statements[0], ast.Import) and statements[0].names[0].name == "sys" and isinstance(statements[1], ast.If)
sys.exit(0 if expected else 1)
PYTHON
echo "$checkout: applied; python -m absolute_zero_reasoner.main_azr_ppo ... population=4t4s trains a population"
