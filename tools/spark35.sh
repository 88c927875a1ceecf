#!/usr/bin/env bash
# spark35.sh [OPTION...]: runs the tests of DataFrames with pyspark 3.5, which is fetched once into .venvs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
folder=$ROOT/.venvs/pyspark-3.5
if [[ ! -e $folder/ready ]]; then
  "$PYTHON" -m uv pip install -q --python "$PYTHON" --target "$folder" -r versions/spark-3.5.txt
  touch "$folder/ready"
fi
# pyspark 3.5 warns of distutils at every turn, and leaves sockets open.
PYTHONPATH=$folder:$ROOT/python:$ROOT/tests/python \
  exec "$PYTHON" -m pytest -q -W ignore "$@" tests/python/test_spark_frames.py
