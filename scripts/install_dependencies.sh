#!/usr/bin/env bash
# Installs what building and testing shardsim needs on Debian 12 or later. Does nothing when all is there.
set -euo pipefail

packages=(g++ cmake ninja-build ccache libboost-graph-dev libeigen3-dev nlohmann-json3-dev libcli11-dev libfmt-dev libtbb-dev
          libgtest-dev libgmock-dev libbenchmark-dev clang-format clang-tidy libjs-vega)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ "${#missing[@]}" -eq 0 ]; then exit 0; fi

run=()
if [ "$(id -u)" -ne 0 ]; then run=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
"${run[@]}" apt-get update -q
"${run[@]}" apt-get install -y -q --no-install-recommends "${missing[@]}"
