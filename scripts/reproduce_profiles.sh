#!/usr/bin/env bash
# Makes the shipped profiles' constants again from the tables in validation/measured and says whether a byte differs.
#
# 1. hardware_profiles/make_calibration.py (needs python3 with numpy and scipy) fits matmuls, attention and collectives and
#    fills in the published and assumed figures that it holds with their sources. It is run on a copy, from profiles whose
#    constants are thrown away, so that nothing survives that it does not make. What it cannot make, and what is therefore
#    taken from the profile as it is: memory.* (published sizes, one source each).
# 2. The same tables through `shardsim calibrate`, which fits the same formulas another way: how far its constants predict
#    the tables better or worse than the shipped ones do. Nothing of this is written to the repository.
#
#    scripts/reproduce_profiles.sh [build/release/shardsim]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=${1:-build/release/shardsim}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

echo "== shipped profiles from their data"
mkdir -p "$scratch/validation"
cp -r hardware_profiles "$scratch/"
cp -r validation/measured "$scratch/validation/"
python3 - "$scratch/hardware_profiles" <<'PYTHON'
import json
import sys
from pathlib import Path
for path in Path(sys.argv[1]).glob("*.json"):
    profile = json.loads(path.read_text())
    profile["calibration"] = {k: v for k, v in profile["calibration"].items() if k.startswith("memory.")}
    path.write_text(json.dumps(profile, indent=2) + "\n")
PYTHON
python3 "$scratch/hardware_profiles/make_calibration.py"
status=0
diff -r hardware_profiles "$scratch/hardware_profiles" && echo "identical, byte for byte" || status=1

echo "== the same tables through shardsim calibrate"
tables=validation/measured
for row in "dgx-a100-80gb matmul a100_sxm bfloat16" "dgx-h100 matmul h100_sxm bfloat16" "dgx-b200 matmul b200_sxm bfloat16" \
    "dgx-a100-80gb a100_sxm_node" "dgx-h100 h100_sxm_node" "dgx-b200 b200_sxm_node"; do
  read -r profile table which <<< "$row"
  folder=collectives
  if [ "$table" = matmul ]; then folder=kernels; fi
  # shellcheck disable=SC2086
  scripts/samples_of_table.py "$tables/$folder/$table.csv" $which > "$scratch/samples.json"
  echo "$profile, $table $which"
  "$binary" calibrate --profile "$profile" "$scratch/samples.json" -o "$scratch/fitted.json" > "$scratch/report.txt"
  sed -n '1,/^$/p' "$scratch/report.txt"
done
exit "$status"
