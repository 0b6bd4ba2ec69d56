"""Cut small recordings for the tests out of full ones.

The full ones are token traces of a small Mixture-of-Experts model (6 layers, 32 experts, top-4), recorded from SGLang
0.5.16 on two GPUs with data-parallel attention: 360 requests of 16 kinds of text, and 64 requests of which code went
to rank 0 and the rest to rank 1. Run with ``python tests/data/make_data.py FOLDER``, where FOLDER holds
``trace_mixed.npz`` and ``trace_affinity.npz``; the cut files are written beside this script.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

CUTS = {"tiny_mixed.npz": ("trace_mixed.npz", 36), "tiny_affinity.npz": ("trace_affinity.npz", 24)}


def cut(source: Path, target: Path, requests: int) -> None:
    """Keep the first requests of a trace, with everything known of them."""
    with np.load(source, allow_pickle=False) as full:
        arrays = {name: full[name] for name in full.files}
    kept_T = arrays["request_id"] < requests
    for name, values in arrays.items():
        if name == "topk":
            arrays[name] = values[:, kept_T]
        elif name in ("request_id", "position"):
            arrays[name] = values[kept_T]
        elif name.startswith("req_"):
            arrays[name] = values[:requests]
    np.savez_compressed(target, **arrays)


if __name__ == "__main__":
    for cut_name, (full_name, count) in CUTS.items():
        cut(Path(sys.argv[1]) / full_name, Path(__file__).parent / cut_name, count)
