#!/usr/bin/env bash
# A Python environment with the real SGLang for CPU only, and this project's plugin in it.
#   setup.sh VENV [VERSION]        VERSION: 0.5.23 (default) or 0.5.16; run again at will
# Needs Python 3.11 (or PYTHON=...) and 2.5 GB of disk; takes 70-90 s.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# \{0,1\}//p' "$0"; exit 2; }
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
project=$(cd "$here/../../.." && pwd)
venv=$1 version=${2:-0.5.23} python=${PYTHON:-python3} torch=2.13.0
pins=$here/constraints-$version.txt started=$SECONDS
[ -f "$pins" ] || { echo "no constraints for SGLang $version; there are: $(cd "$here" && ls constraints-*.txt | tr '\n' ' ')" >&2; exit 2; }

[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
py=$venv/bin/python
"$py" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11) and "Python 3.11 is needed, this is " + sys.version.split()[0])'
# Only a part of these packages is ever imported, so that compiling all of it would take longer than doing without.
pip=("$py" -m pip install --quiet --disable-pip-version-check --no-compile)

# torch first: 2.13.0 also matches a local 2.13.0+cpu wheel, which pip prefers.
"${pip[@]}" --constraint "$pins" "torch==$torch"
"$py" -W ignore -c 'import torch, sys; sys.exit(torch.version.cuda and "torch " + torch.__version__ + " is a CUDA build; a CPU wheel is needed (pip --find-links)")'
# Without dependencies: SGLang asks for CUDA packages that a CPU server never imports.
"${pip[@]}" --no-deps -r "$pins" "sglang==$version"
"${pip[@]}" --no-deps --editable "$project"

site=$("$py" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
cp -r "$here/stubs/sgl_kernel" "$site/"
cp "$here/torchvision_ops.py" "$site/"
echo "import torchvision_ops" > "$site/zz_torchvision_ops.pth"

"$py" -c 'import sglang, torch, profiler.plugin; print("SGLang", sglang.__version__, "torch", torch.__version__)'
echo "ready: $venv after $((SECONDS - started)) s"
