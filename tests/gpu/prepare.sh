#!/usr/bin/env bash
# Fills the folder that the acceptance on GPUs needs beside a checkout:
#
#   tests/gpu/prepare.sh KIT SITE [MODEL] [PROMPTS]
#
# SITE     archive (tar, xz) with a folder site/: SGLang 0.5.16 and what it imports, for the GPU machine's Python and torch
# MODEL    folder of a trained model for the loop, copied to KIT-model beside the kit
# PROMPTS  its prompts (JSON list of {domain, input_ids}), copied beside it
#
# Writes KIT/site.txz and KIT/tools.txz: what moeplan's commands need and such machines lack, for Python 3.12 on x86-64.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2; }
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kit=$1 site=$2 model=${3:-} prompts=${4:-}
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
mkdir -p "$kit" "$work/tools"
cp "$site" "$kit/site.txz"

pins=$(grep -E '^(ortools|immutabledict|absl-py|protobuf|typer)==' "$project/constraints.txt")
platforms=()
for glibc in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014 manylinux1; do platforms+=(--platform "${glibc}_x86_64"); done
# shellcheck disable=SC2086
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --implementation cp \
    --python-version 3.12 "${platforms[@]}" --dest "$work/wheels" $pins
for wheel in "$work"/wheels/*.whl; do python3 -m zipfile -e "$wheel" "$work/tools"; done
rm -rf "$work"/tools/ortools/{math_opt,set_cover} "$work"/tools/ortools/routing/*test*
tar -C "$work" -c tools | xz -9 -T0 > "$kit/tools.txz"

if [ -n "$model" ]; then
    mkdir -p "$kit-model"
    cp "$model"/* "$kit-model/"
    [ -z "$prompts" ] || cp "$prompts" "$kit-model/prompts.json"
fi
du -sh "$kit" $([ -z "$model" ] || echo "$kit-model")
