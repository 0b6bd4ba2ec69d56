"""How fast a long token trace is read, imported and counted, and how much memory that takes.

Run with ``python -m tests.bench.trace_import``. It makes a trace of 100 million routed ids (26 layers, 641,026 tokens,
6 experts each of 64, skewed), then runs each task in a process of its own and prints a table. Rates are by CPU time, so
they are per core. ``memory`` is the peak resident size of the process as a multiple of the decompressed file, with and
without what Python and its libraries take before the task starts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

from profiler.inputs import open_inputs
from profiler.readers.options import ReadOptions
from profiler.windows import WindowBy, build_demand
from profiler.writers.parquet import import_trace

LAYERS, EXPERTS, TOP_K = 26, 64, 6
TOKENS_PER_REQUEST = 157


def make_trace(path: Path, tokens: int) -> None:
    """Write a token trace with skewed ids, layer by layer's random numbers, as a compressed archive."""
    rng = np.random.default_rng(0)
    topk_LTK = np.empty((LAYERS, tokens, TOP_K), dtype=np.int8)
    for layer in range(LAYERS):
        order = rng.permutation(EXPERTS)
        topk_LTK[layer] = order[(EXPERTS * rng.random((tokens, TOP_K), dtype=np.float32) ** 1.7).astype(np.int8)]
    request_id_T = (np.arange(tokens) // TOKENS_PER_REQUEST).astype(np.int32)
    np.savez_compressed(
        path,
        topk=topk_LTK,
        request_id=request_id_T,
        position=(np.arange(tokens) % TOKENS_PER_REQUEST).astype(np.int32),
        domain=(request_id_T % 4).astype(np.int8),
        num_experts=np.int32(EXPERTS),
    )


def measure(task: str, source: Path, target: Path) -> dict[str, float]:
    """Run one task in this process; return seconds of wall and CPU time and peak memory before and after."""
    baseline_bytes = _peak_bytes()
    wall, cpu = time.perf_counter(), time.process_time()
    readers = open_inputs([source], ReadOptions())
    if task == "import":
        import_trace(readers, target)
    else:
        build_demand(readers, window_by=WindowBy.parse(task), gpus=8)
    return {
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "baseline_bytes": baseline_bytes,
        "peak_bytes": _peak_bytes(),
    }


def _peak_bytes() -> int:
    kilo = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kilo


def _in_child(task: str, source: Path, target: Path, tokens: int = 0) -> dict[str, float]:
    ids = str(tokens * LAYERS * TOP_K)
    command = [sys.executable, "-m", "tests.bench.trace_import", "--task", task, "--ids", ids, str(source), str(target)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ids", type=int, default=100_000_000, help="routed ids in the trace")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("paths", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tokens = -(-arguments.ids // (LAYERS * TOP_K))
    if arguments.task == "make":
        make_trace(arguments.paths[0], tokens)
        print("{}")
        return
    if arguments.task:
        print(json.dumps(measure(arguments.task, *arguments.paths)))
        return
    ids = tokens * LAYERS * TOP_K
    with tempfile.TemporaryDirectory() as folder:
        archive, trace = Path(folder) / "trace.npz", Path(folder) / "trace.parquet"
        # Made in a child too: a child's peak starts at what its parent had resident when it was forked.
        _in_child("make", archive, trace, tokens)
        with zipfile.ZipFile(archive) as opened:
            unpacked_bytes = sum(info.file_size for info in opened.infolist())
        print(
            f"{ids:,} routed ids: {archive.stat().st_size / 1e6:.0f} MB as .npz, {unpacked_bytes / 1e6:.0f} MB unpacked"
        )
        print(f"{'task':34} {'wall s':>7} {'cpu s':>7} {'M ids/s/core':>13} {'memory':>7} {'without Python':>15}")
        for label, task, source in (
            ("npz -> demand, one window", "file", archive),
            ("npz -> demand by domain", "domain", archive),
            ("npz -> moeplan trace", "import", archive),
            ("moeplan trace -> demand, one window", "file", trace),
            ("moeplan trace -> demand by domain", "domain", trace),
        ):
            figures = _in_child(task, source, trace)
            peak, own = figures["peak_bytes"], figures["peak_bytes"] - figures["baseline_bytes"]
            print(
                f"{label:34} {figures['wall_s']:7.2f} {figures['cpu_s']:7.2f} {ids / 1e6 / figures['cpu_s']:13.1f} "
                f"{peak / unpacked_bytes:6.2f}x {own / unpacked_bytes:14.2f}x"
            )
        size_bytes = trace.stat().st_size
        print(f"the moeplan trace has {size_bytes / 1e6:.0f} MB, {size_bytes * 8 / ids:.2f} bits per id")


if __name__ == "__main__":
    main()
