#!/usr/bin/env bash
# Everything that must hold before a change lands: installs what is missing, builds with warnings as errors, runs the
# tests under the address and undefined-behaviour sanitizers, builds the optimised binary, the benchmarks and the
# consumer of the installed package, compares predictions with measured runs, checks format and lint.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
jobs=$(nproc)

scripts/install_dependencies.sh

echo "== format"
git ls-files '*.h' '*.cpp' | xargs clang-format --dry-run -Werror

echo "== optimised build, benchmarks, package"
cmake --preset release -DSHARDSIM_TESTS=ON -DSHARDSIM_BENCHMARKS=ON -DSHARDSIM_WERROR=ON >/dev/null
cmake --build --preset release -j "$jobs"
scripts/check_package.sh build/release

echo "== predictions against measured runs"
# Mean absolute errors, a little above what is reached: torch stacks, whole layouts in time, whole layouts in memory.
measured=validation/measured
build/release/shardsim validate $measured/{torchtitan,mosaic_llm_foundry}.json --worst 0 --max-step-mape 0.22 --max-memory-mape 0.14
build/release/shardsim validate $measured/{megatron_papers,vtrain_multi,nvidia_dgxc_recipes,nvidia_megatron_bridge_perf,nvidia_nemo_perf}.json \
  --worst 0 --max-step-mape 0.11
build/release/shardsim validate $measured/megatron_lm_ci_golden.json --worst 0 --max-memory-mape 0.06
build/release/shardsim validate $measured/{internevo,flagperf,vtrain_single}.json --worst 0 --max-step-mape 0.11

echo "== lint"
git ls-files 'src/*.cpp' | xargs -P "$jobs" -n 4 clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null

echo "== tests under sanitizers"
cmake --preset asan -DSHARDSIM_BENCHMARKS=OFF >/dev/null
cmake --build --preset asan -j "$jobs"
ctest --preset asan -j "$jobs"
