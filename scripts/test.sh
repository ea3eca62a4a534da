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
# No source may be worse than the best it reached; scripts/accuracy_report.sh notes better figures in the ratchet.
build/release/shardsim validate validation/measured --worst 0 --ratchet validation/ratchet.json --min-outcomes 0.95

echo "== lint"
git ls-files 'src/*.cpp' | xargs -P "$jobs" -n 4 clang-tidy -p build/release --quiet --extra-arg=-Wno-unknown-warning-option 2>/dev/null

echo "== tests under sanitizers"
cmake --preset asan -DSHARDSIM_BENCHMARKS=OFF >/dev/null
cmake --build --preset asan -j "$jobs"
ctest --preset asan -j "$jobs"
