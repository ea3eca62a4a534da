#!/usr/bin/env bash
# Regenerates reports/accuracy.md and reports/accuracy.html: predictions against every published run in
# validation/measured, the notes before them; notes better figures in validation/ratchet.json. Fails where a figure is worse.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=${1:-build/release/shardsim}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
{
  cat reports/accuracy_notes.md
  printf '\n### All sources\n\n```\n'
  "$binary" validate validation/measured --worst 0 --html reports/accuracy.html --ratchet validation/ratchet.json --update-ratchet
  printf '```\n'
  for source in megatron_papers vtrain_multi nvidia_dgxc_recipes nvidia_megatron_bridge_perf nvidia_nemo_perf \
      megatron_lm_ci_golden torchtitan mosaic_llm_foundry user_reports; do
    printf '\n### %s\n\n```\n' "$source"
    "$binary" validate "validation/measured/$source.json" --worst 25
    printf '```\n'
  done
} > "$report"
cp "$report" reports/accuracy.md
