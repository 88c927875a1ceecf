#!/usr/bin/env bash
# hdfs.sh [OPTION...]: runs the tests of HDFS against a NameNode and a DataNode of its own. Their jars (60 MB) and the client
# are fetched once into .venvs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

cd "$ROOT"
folder=$ROOT/.venvs/hdfs
# Of pyspark's Hadoop; its test of a cluster asks for classes of JUnit.
jars=(
  org.apache.hadoop:hadoop-client-minicluster:3.5.0
  org.junit.jupiter:junit-jupiter-api:5.12.2
  org.junit.platform:junit-platform-commons:1.12.2
  org.opentest4j:opentest4j:1.3.0
)
if [[ ! -e $folder/ready ]]; then
  command -v mvn >/dev/null || die hdfs "mvn is missing" "install the package 'maven'"
  for jar in "${jars[@]}"; do
    mvn -q org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy -Dartifact="$jar" \
      -DoutputDirectory="$folder/jars" ||
      die hdfs "$jar cannot be fetched" "check the network and run it again"
  done
  "$PYTHON" -m uv pip install -q --python "$PYTHON" --target "$folder/python" -r versions/hdfs.txt
  touch "$folder/ready"
fi

spark=$("$PYTHON" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
scratch=$(mktemp -d)
port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
java -Xmx512m -Dtest.build.data="$scratch" -cp "$folder/jars/*:$spark/jars/*" org.apache.hadoop.test.MiniDFSClusterManager \
  -datanodes 1 -nnport "$port" -httpport 0 -format -writeDetails "$scratch/ready" >"$scratch/log" 2>&1 &
java=$!
trap 'kill $java 2>/dev/null || true; wait $java 2>/dev/null || true; rm -rf "$scratch"' EXIT
for ((second = 0; second < 120; ++second)); do
  [[ -s $scratch/ready ]] && break
  kill -0 $java 2>/dev/null || break
  sleep 1
done
[[ -s $scratch/ready ]] || { tail -20 "$scratch/log" >&2; die hdfs "the NameNode did not start" "read the lines above"; }
ORCA_HDFS=hdfs://localhost:$port PYTHONPATH=$folder/python:$ROOT/python:$ROOT/tests/python \
  "$PYTHON" -m pytest -q "$@" tests/python/test_hdfs.py
