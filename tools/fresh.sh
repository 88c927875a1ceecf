#!/usr/bin/env bash
# fresh.sh: runs .ci/run in a fresh clone of HEAD. If it passes, notes the tree in build/passed.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
tree=$(git rev-parse 'HEAD^{tree}')
[[ -z $(git status --porcelain) ]] || say fresh "what is not committed is left out"
clone=$(mktemp -d "${TMPDIR:-/tmp}/orca-fresh.XXXXXX")
trap 'rm -rf "$clone"' EXIT
chmod 755 "$clone"  # Tests run programs as another user, too.
git clone -q "$ROOT" "$clone/orca"
mkdir -p build/passed
log=$LOGS/fresh.log
say fresh "$(git log -1 --format='%h %s'), in $clone; its output is in ${log#"$ROOT"/}"
# The clone has a time of its own, and nothing of this checkout's environment.
if ! env -u ORCA_START -u CCACHE_BASEDIR -u MAKEFLAGS -u MAKELEVEL "$clone/orca/.ci/run" </dev/null 2>&1 | tee "$log"; then
  die fresh ".ci/run failed" "read ${log#"$ROOT"/}"
fi
sed -n '/^Minutes per stage/,$p' "$log" >"build/passed/$tree"
say fresh "passed: build/passed/$tree"
