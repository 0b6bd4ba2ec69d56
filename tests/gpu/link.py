"""How fast GPUs copy to each other: what a push is to be held against."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.gpu.machine import PROJECT, Machine
from tests.gpu.results import Results

MIB = 512
REPEATS = 5


def measure_link(machine: Machine, results: Results) -> None:
    """Measure copies from GPU 0 to GPU 1, one way and both ways at once, in a process of its own."""
    if machine.device != "cuda":
        results.add("link", skipped="no GPUs here")
        return
    command = [sys.executable, "-m", "tests.gpu.link"]
    said = subprocess.check_output(command, cwd=PROJECT, env=machine.tool_variables(), text=True, timeout=120)
    results.add("link", **json.loads(said.splitlines()[-1]))


def _rates() -> dict[str, float]:
    import torch

    sent = [torch.ones(MIB * 2**20, dtype=torch.uint8, device=f"cuda:{gpu}") for gpu in (0, 1)]
    # received[gpu] lies on that GPU: what is copied into it comes from the other one.
    received = [torch.empty_like(sent[gpu]) for gpu in (0, 1)]
    streams = [torch.cuda.Stream(device=f"cuda:{gpu}") for gpu in (0, 1)]

    def copy(senders: tuple[int, ...]) -> float:
        """Return GB/s that each sender reached."""
        times = []
        for _ in range(REPEATS):
            marks = []
            for gpu in senders:
                with torch.cuda.device(gpu), torch.cuda.stream(streams[gpu]):
                    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    start.record()
                    for _copy in range(4):
                        received[1 - gpu].copy_(sent[gpu], non_blocking=True)
                    end.record()
                    marks.append((start, end))
            for gpu in (0, 1):
                torch.cuda.synchronize(gpu)
            times.append(max(start.elapsed_time(end) for start, end in marks))
        return round(4 * MIB * 2**20 / 1e6 / min(times), 1)

    return {
        "peer_access": bool(torch.cuda.can_device_access_peer(0, 1)),
        "one_way_gb_per_s": copy((0,)),
        "both_ways_gb_per_s_each": copy((0, 1)),
    }


if __name__ == "__main__":
    print(json.dumps(_rates()))
