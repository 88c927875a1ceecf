#!/usr/bin/env bash
# spark35.sh [OPTION...]: runs the tests of DataFrames with pyspark 3.5, which is fetched once into .venvs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
tools/environments.sh pyspark-3.5
# pyspark 3.5 warns of distutils at every turn, and leaves sockets open.
PYTHONPATH=$ROOT/.venvs/pyspark-3.5:$ROOT/python:$ROOT/tests/python \
  exec "$PYTHON" -m pytest -q -W ignore "$@" tests/python/test_spark_frames.py
