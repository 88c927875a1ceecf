# What the shell scripts share: where things are, steps with elapsed time, root, job counts. Source it.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
LOGS=$ROOT/build/logs
VENV=$ROOT/.venv
PYTHON=$VENV/bin/python
: "${ORCA_START:=$(date +%s)}"
export ORCA_START
# Python starts slowly without bytecode, and a foreign home or path would leak other packages in.
unset PYTHONDONTWRITEBYTECODE PYTHONHOME PYTHONPATH
# Checkouts in different places share the compiler cache.
export CCACHE_BASEDIR=${CCACHE_BASEDIR-$ROOT} CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR-1}
mkdir -p "$LOGS"

# say NAME TEXT: one line with the time since the command began.
say() {
  printf '[%4d s] %s: %s\n' $(($(date +%s) - ORCA_START)) "$1" "$2"
}

# die NAME WHAT REMEDY
die() {
  printf '\n%s failed: %s\nWhat to do: %s\n' "$1" "$2" "$3" >&2
  exit 1
}

# step NAME TEXT REMEDY COMMAND...: runs the command with its output in build/logs/NAME.log. A long one shows where it
# is every half minute; a failing one shows the end of its log and the remedy.
step() {
  local name=$1 text=$2 remedy=$3 log=$LOGS/$1.log heartbeat code=0
  shift 3
  say "$name" "$text"
  : >"$log"
  (
    # A read with a limit, not sleep: no child is left behind that keeps our output open.
    exec {never}<> <(:)
    while ! read -rt 30 -u "$never"; do
      say "$name" "... $(tail -n 1 "$log" | tr -d '\r' | cut -c 1-90)"
    done
  ) &
  heartbeat=$!
  "$@" >"$log" 2>&1 </dev/null || code=$?
  kill "$heartbeat" 2>/dev/null || true
  wait "$heartbeat" 2>/dev/null || true
  if ((code != 0)); then
    printf '\n--- the last lines of %s ---\n' "${log#"$ROOT"/}" >&2
    # Ninja goes on with other files after an error: show the error, not what came last.
    grep -n -m 5 -A 12 -E '^FAILED: |(error|Error|ERROR)[: ]|^E: ' "$log" | head -n 40 >&2 || true
    echo '...' >&2
    tail -n 12 "$log" >&2
    die "$name" "$text (exit status $code)" "$remedy"
  fi
}

# as_root COMMAND...: the command as root, by sudo if need be.
as_root() {
  if ((EUID == 0)); then
    "$@"
  else
    sudo "$@"
  fi
}

# compile_jobs: cores, but no more than memory allows; a file that includes torch takes 1.4 GB.
compile_jobs() {
  local cores memory limit file
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
  for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
    limit=$(cat "$file" 2>/dev/null || echo max)
    if [[ $limit =~ ^[0-9]{1,18}$ ]] && ((limit / 1048576 < memory)); then
      memory=$((limit / 1048576))
    fi
  done
  ((memory / 1500 < cores)) && cores=$((memory / 1500))
  echo $((cores > 0 ? cores : 1))
}

# clang_tool NAME: the installed clang-16 tool of that name (clang-format, clang++, ...), or a newer one.
clang_tool() {
  local version
  for version in 16 17 18 19 20; do
    if command -v "$1-$version" >/dev/null; then
      command -v "$1-$version"
      return
    fi
  done
  die "$1" "no $1-16 or newer on PATH" "run 'make setup'"
}
