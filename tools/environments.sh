#!/usr/bin/env bash
# environments.sh [NAME...]: makes the Python environments of .venvs/ that some tests need beside .venv (all of them by
# default). A folder with a file "ready" that equals its list in versions/ is complete.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
declare -A lists=([keras]=keras.txt [pyspark-3.5]=spark-3.5.txt)
# The first import compiles what is needed; all files of TensorFlow would take two minutes.
declare -A imports=([keras]=tensorflow [pyspark-3.5]=pyspark.sql)
(($# > 0)) || set -- "${!lists[@]}"
mkdir -p .venvs
for name in "$@"; do
  list=${lists[$name]:-}
  [[ -n $list ]] || die environments "there is no environment $name" "use ${!lists[*]}"
  # Two tests may want the same one at once.
  exec {lock}>".venvs/$name.lock"
  flock -w 600 "$lock" || die environments "$name is being made for ten minutes" "end the other process, then run this again"
  if ! cmp -s "versions/$list" ".venvs/$name/ready"; then
    rm -rf ".venvs/$name"
    "$PYTHON" -m uv pip install -q --python "$PYTHON" --target ".venvs/$name" -r "versions/$list"
    PYTHONPATH=.venvs/$name "$PYTHON" -c "import ${imports[$name]}" >/dev/null 2>&1 || true
    cp "versions/$list" ".venvs/$name/ready"
  fi
  exec {lock}>&-
done
