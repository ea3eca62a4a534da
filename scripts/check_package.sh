#!/usr/bin/env bash
# Installs the build in $1 into a scratch prefix and builds and runs a program that only does find_package(shardsim).
set -euo pipefail
build=$(cd "$1" && pwd)
consumer=$(cd "$(dirname "${BASH_SOURCE[0]}")/../tests/package" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

cmake --install "$build" --prefix "$scratch/prefix" >/dev/null
cmake -S "$consumer" -B "$scratch/build" -G Ninja -DCMAKE_PREFIX_PATH="$scratch/prefix" >/dev/null
cmake --build "$scratch/build"
"$scratch/build/consumer" "$scratch/prefix/share/shardsim"
"$scratch/prefix/bin/shardsim" simulate --model gpt2 --cluster dgx-h100 --gpus 8 --strategy fsdp2 --sequence-length 1024 >/dev/null
