#!/usr/bin/env bash
# Installs what is missing, builds shardsim and predicts a bundled example: Llama-3.1-8B with FSDP2 on 64 H100.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/install_dependencies.sh
cmake --preset release -DSHARDSIM_TESTS=OFF -DSHARDSIM_BENCHMARKS=OFF >/dev/null
cmake --build --preset release --target shardsim
exec build/release/shardsim simulate examples/llama3-8b-fsdp2-64.json "$@"
