#!/usr/bin/env bash
# Regenerates reports/accuracy.md: the notes, then predictions against every published run in validation/measured.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=${1:-build/release/shardsim}
report=$(mktemp)
trap 'rm -f "$report"' EXIT
{
  cat reports/accuracy_notes.md
  for source in torchtitan mosaic_llm_foundry; do
    printf '\n### %s\n\n```\n' "$source"
    "$binary" validate "validation/measured/$source.json" --worst 25
    printf '```\n'
  done
} > "$report"
cp "$report" reports/accuracy.md
