#!/usr/bin/env bash
# build.sh PRESET [TARGET...]: configures (once) and builds a preset of CMakePresets.json in build/PRESET.
# The release build is linked into the Python package.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

preset=${1:?usage: tools/build.sh PRESET [TARGET...]}
shift
tree=$ROOT/build/$preset
options=()
case $preset in
  release | lint) options=(-DPython_EXECUTABLE="$PYTHON") ;;
  # Line numbers are enough for a sanitizer's stacks, and this compiles in less than half the time.
  *) options=(-DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -g1 -DNDEBUG") ;;
esac
[[ $preset == asan || $preset == fuzz ]] && options+=(-DCMAKE_CXX_COMPILER="$(clang_tool clang++)")

cd "$ROOT"
key=$(cat CMakePresets.json versions/*.txt tools/build.sh | sha256sum | cut -c 1-16)
if [[ $(cat "$tree/orca-versions" 2>/dev/null) != "$key" ]]; then
  step "configure-$preset" "$preset" "run 'make clean' if the tree was moved or its compiler changed" \
    cmake --preset "$preset" "${options[@]}"
  echo "$key" >"$tree/orca-versions"
fi
[[ ${1:-} == --configure-only ]] && exit
step "build-$preset" "$preset, $(compile_jobs) jobs" "mend the first error above" \
  cmake --build "$tree" -j "$(compile_jobs)" ${1:+--target "$@"}
if [[ $preset == release ]]; then
  ln -sfn ../../build/release/native "$ROOT/python/orca/_native"
fi
