"""Times of an all-to-all over the GPUs of one machine, one process each."""

from __future__ import annotations

import json
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiler.hardware.fitting import LinkSample, fit_link
from profiler.hardware.gpu_clock import median_seconds

PEER_BYTES = (2**12, 2**16, 2**20, 2**24, 2**26)
"""Bytes to each other GPU."""


@dataclass(frozen=True)
class NvlinkTimes:
    """Fixed seconds of one all-to-all, and bytes per second that a GPU sends."""

    fixed_s: float
    bytes_per_s: float


def measure_nvlink(gpus: int) -> NvlinkTimes:
    """Measure ``all_to_all_single`` with NCCL; raises RuntimeError where a process or the communication fails."""
    import torch.multiprocessing

    with tempfile.TemporaryDirectory(prefix="moeplan-calibrate-") as folder:
        file = Path(folder) / "seconds.json"
        arguments = (gpus, _free_port(), str(file))
        torch.multiprocessing.spawn(_rank, args=arguments, nprocs=gpus, join=True)  # type: ignore[attr-defined, no-untyped-call]
        seconds = json.loads(file.read_text())
    samples = [LinkSample(0.0, size * (gpus - 1), each) for size, each in zip(PEER_BYTES, seconds, strict=True)]
    figures = fit_link(samples)
    return NvlinkTimes(figures.fixed_s, figures.sent_bytes_per_s)


def _rank(rank: int, gpus: int, port: int, file: str) -> None:
    import torch
    from torch import distributed

    torch.cuda.set_device(rank)
    distributed.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=gpus)
    try:
        seconds = [_seconds(torch, distributed, size, gpus=gpus) for size in PEER_BYTES]
        slowest = torch.tensor(seconds, device="cuda", dtype=torch.float64)
        distributed.all_reduce(slowest, op=distributed.ReduceOp.MAX)
        if rank == 0:
            Path(file).write_text(json.dumps(slowest.tolist()))
    finally:
        distributed.destroy_process_group()


def _seconds(torch: Any, distributed: Any, peer_bytes: int, *, gpus: int) -> float:
    # What a GPU keeps is no part of an all-to-all of tokens.
    sizes = [peer_bytes if each != distributed.get_rank() else 0 for each in range(gpus)]
    sent = torch.zeros(sum(sizes), dtype=torch.uint8, device="cuda")
    received = torch.empty_like(sent)
    distributed.barrier()
    return median_seconds(torch, lambda: distributed.all_to_all_single(received, sent, sizes, sizes))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
