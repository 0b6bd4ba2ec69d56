"""Makes the kept corpus anew: ``python -m tests.fuzz.seeds``. Small, valid files of every kind, made by real writers.

What a fuzzer found is kept beside them under the name of its fault, and is never made anew.
"""

from __future__ import annotations

import base64
import json
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.numpy import save_file

from placement.layout import Layout
from placement.topology import Topology
from profiler.formats.export import export_layout
from profiler.hardware.profile_file import read_hardware, render_hardware
from profiler.inputs import open_inputs
from profiler.plan_file import render_plan
from profiler.readers.options import ReadOptions
from profiler.replay import running_replay
from profiler.writers.parquet import import_trace
from tests.fuzz.targets import PART, SHAPE, joined
from tests.profiler.readers.sglang_files import (
    count,
    prefill,
    random_layout,
    rng,
    route,
    to_slots,
    write_counts,
    write_tokens,
)
from tests.sample_plans import Sample, make_plan, skewed_demand

CORPUS = Path(__file__).parent / "corpus"
COUNTS_WLE = [[[4, 3, 2, 1], [1, 1, 1, 1]], [[0, 5, 5, 0], [2, 0, 0, 8]]]
TOPK_LTK = np.array([[[0, 1], [2, 3], [1, 2]], [[3, 0], [1, 0], [2, 3]]], dtype=np.int16)


def seeds(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """Yield target, name and content."""
    yield from _counts(folder)
    yield from _sglang(folder)
    yield from _tensorrt_llm(folder)
    yield from _layouts(folder)
    yield from _texts()
    yield from _answers(folder)


def _counts(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    text = json.dumps({"logical_count": COUNTS_WLE}).encode()
    yield "json_counts", "windows", text
    yield "json_counts", "one", json.dumps({"logical_count": COUNTS_WLE[0]}).encode()
    yield "any_recording", "json", text
    source = folder / "counts.json"
    source.write_bytes(text)
    tokens = folder / "tokens.npz"
    arrays: dict[str, Any] = {"topk": TOPK_LTK, "request_id": np.array([0, 0, 1]), "num_experts": np.array(4)}
    np.savez(tokens, **arrays)
    counted = folder / "counts.npz"
    np.savez(counted, counts=np.array(COUNTS_WLE))
    for name, file in (("counts", source), ("tokens", tokens)):
        trace = folder / f"{name}.parquet"
        import_trace(open_inputs([file], ReadOptions()), trace)
        yield "parquet", name, trace.read_bytes()
    for name, file in (("tokens", tokens), ("counts", counted)):
        yield "npz", name, _members(file)
    yield "any_recording", "npz", counted.read_bytes()
    csv = b"layer_id,expert_id,count\n0,0,5\n0,1,7\n1,3,2\n"
    yield "rank_csv", "rank", csv
    record = {
        "record_type": "eplb_load_stats", "version": 1, "step": 100, "num_ranks": 2,
        "expert_load": [[10, 1, 5, 2], [2, 8, 1, 3]], "p2l_map": [[0, 1, 2, 0], [2, 1, 0, 1]],
    }  # fmt: skip
    yield "vllm_load", "one_step", json.dumps(record).encode() + b"\n"
    yield "any_recording", "csv", csv


def _sglang(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    layout_LP = random_layout(rng(3), layers=2, experts=4, redundant=2)
    ids_LTK = to_slots(rng(), route(rng(), np.full((2, 4), 0.25), tokens=3, top_k=2), layout_LP)
    dumps = folder / "dumps"
    dumps.mkdir()
    yield "sglang_pt", "per_token", _members(write_tokens(dumps, 0, [prefill(1, ids_LTK)], layout_LP))
    yield "sglang_pt", "per_pass", _members(write_counts(dumps, 1, [count(ids_LTK, 6)], layout_LP))
    ranks = [_members(write_tokens(dumps, rank, [prefill(1, ids_LTK)], layout_LP)) for rank in range(2)]
    history = json.dumps([{"from_pass": 0, "physical_to_logical_map": layout_LP.tolist()}]).encode()
    yield "sglang_ranks", "two", PART.join(ranks)
    yield "sglang_ranks", "two_with_history", PART.join([*ranks, history])
    stat = folder / "stat.pt"
    torch.save({"rank": 0, "logical_count": torch.tensor(COUNTS_WLE, dtype=torch.int32)}, stat)
    yield "sglang_pt", "stat", _members(stat)
    yield "any_recording", "pt", stat.read_bytes()


def _tensorrt_llm(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    statistics = folder / "statistics"
    statistics.mkdir()
    (statistics / "meta_info.json").write_text('{"num_experts": 4, "num_experts_per_token": 2}')
    for rank in range(2):
        save_file(
            {"100_0": np.array([1, 2, 3, 4]), "100_1": np.array([4, 3, 2, 1])}, statistics / f"rank{rank}.safetensors"
        )
    files = sorted(statistics.iterdir())
    yield "tensorrt_llm", "two_ranks", joined((file.name, file.read_bytes()) for file in files)


def _layouts(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    layout = Layout(np.array([[0, 1, 2, 3, 0, 1], [3, 2, 1, 0, 1, 2]]), gpus=2, experts=4)
    ends = {"sglang": ".json", "vllm": ".jsonl", "tensorrt-llm": ".yaml", "vllm-ascend": ".json"}
    for format, end in ends.items():
        out = folder / f"{format}{end}"
        export_layout(layout, format=format, out=out, model=SHAPE)
        yield "layout", format, out.read_bytes()
    sample = Sample(skewed_demand(windows=1, layers=2, experts=4), Topology(gpus=2, nodes=1), slots_per_gpu=3, top_k=2)
    plan = render_plan(make_plan(sample)).encode()
    yield "plan_file", "plan", plan
    yield "layout", "plan", plan


def _texts() -> Iterator[tuple[str, str, bytes]]:
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 8,
        "num_experts_per_tok": 2, "hidden_size": 64, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
    }  # fmt: skip
    yield "model_config", "qwen3_moe", json.dumps(config).encode()
    yield "hardware_profile", "h200", render_hardware(read_hardware("h200")).encode()
    yield (
        "settings_file",
        "settings",
        b'host = "::1"\nport = 1\nworkers = 2\nplan_workers = "ray"\nlog_level = "info"\n',
    )
    yield "prompts", "lines", b'{"prompt": "a b c", "max_new_tokens": 4}\n{"input_ids": [1, 2, 3]}\n"text"\n'
    yield "cost_matrix", "two_gpus", b"[[0, 1.5], [1.5, 0]]"
    rows = ("\tGPU0\tGPU1\tNIC0\tCPU Affinity", "GPU0\t X \tNV18\tPIX\t0-31", "GPU1\tNV18\t X \tSYS\t0-31", "Legend:")
    yield "topology_text", "two_gpus", "\n".join(rows).encode()


def _answers(folder: Path) -> Iterator[tuple[str, str, bytes]]:
    """What the replay engine answers; SGLang with the plugin answers the same."""
    (reader,) = open_inputs([folder / "tokens.npz"], ReadOptions())
    paths = ("server_info", "moeplan/health", "moeplan/placement?checksums=1", "moeplan/demand", "moeplan/measured")
    with (
        running_replay(reader, gpus=2, slots_per_gpu=3, steps_per_s=100.0, homes="round-robin") as url,
        httpx.Client(base_url=url) as client,
    ):
        yield "engine_answer", "started", client.post("/moeplan/demand/start", json={"window_steps": 1}).content
        for path in paths:
            yield "engine_answer", path.partition("?")[0].replace("/", "_"), client.get(f"/{path}").content
    ids = base64.b64encode(np.array([[[0, 1], [2, 3]], [[1, 2], [3, 0]]], dtype="<i4").tobytes()).decode()
    meta = {"prompt_tokens": 2, "completion_tokens": 1, "cached_tokens": 0, "routed_experts": ids, "dp_rank": 1}
    yield "engine_answer", "generate", json.dumps({"text": "x", "meta_info": meta}).encode()
    push = {"physical_to_logical_map": [[0, 1, 2, 3, 0, 1]], "expected_layout_hash": "0" * 64, "dry_run": True}
    yield "engine_answer", "push", json.dumps(push).encode()


def _members(archive: Path) -> bytes:
    with zipfile.ZipFile(archive) as opened:
        return joined((name, opened.read(name)) for name in opened.namelist())


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for target, name, content in seeds(Path(folder)):
            place = CORPUS / target
            place.mkdir(parents=True, exist_ok=True)
            (place / name).write_bytes(content)
            print(f"{target}/{name}: {len(content)} bytes")


if __name__ == "__main__":
    main()
