#!/usr/bin/env bash
# Regenerates the figures of reports/fsdp-paper.md: below each line "$ shardsim ..." of a code block, what that command
# prints now. The text between the blocks is left as it is; read it again when `git diff` shows that a figure moved.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
binary=$(realpath "${1:-build/release/shardsim}")
report=$(mktemp)
trap 'rm -f "$report"' EXIT
shardsim() { "$binary" "$@"; }
in_output=false
while IFS= read -r line; do
  case $line in
    '$ shardsim '*)
      printf '%s\n' "$line"
      eval "${line#\$ }" < /dev/null
      in_output=true
      ;;
    '```')
      printf '%s\n' "$line"
      in_output=false
      ;;
    *) $in_output || printf '%s\n' "$line" ;;
  esac
done < reports/fsdp-paper.md > "$report"
cp "$report" reports/fsdp-paper.md
