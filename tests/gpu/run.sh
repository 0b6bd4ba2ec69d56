#!/usr/bin/env bash
# Unpacks the kit, once, and runs an acceptance on this machine's GPUs.
#
#   tests/gpu/run.sh KIT [SCRIPT ARGUMENTS...]       SCRIPT: two_gpus, four_gpus, serving; without one the kit is unpacked only
#
# KIT may be gone later on: what was unpacked is kept in $MOEPLAN_GPU_ROOT (default: moeplan-gpu in the folder for
# temporary files).
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
kit=$1; shift
project=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
root=${MOEPLAN_GPU_ROOT:-${TMPDIR:-/tmp}/moeplan-gpu}
mkdir -p "$root"
for name in site tools; do
    [ -d "$root/$name" ] && continue
    (mkdir "$root/$name.part" && tar -xJf "$kit/$name.txz" -C "$root/$name.part" && mv "$root/$name.part"/* "$root/" && rmdir "$root/$name.part") &
done
wait
[ ! -f "$kit/jit.txz" ] || tar -xJf "$kit/jit.txz" -C "$root"
[ -d "$root/site" ] && [ -d "$root/tools" ] || { echo "the kit was not unpacked from $kit" >&2; exit 1; }
[ $# -ge 1 ] || { echo "unpacked in $root"; exit 0; }
script=$1; shift
cd "$project"
export PYTHONPATH="$project:$root/plugin:$root/tools:$root/site" PYTHONUNBUFFERED=1
exec python3 -m "tests.gpu.$script" --root "$root" "$@"
