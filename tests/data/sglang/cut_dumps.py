"""Cut small dumps of SGLang's recorder for the tests out of full ones.

The full ones were written by SGLang 0.5.16 on two GPUs (tensor and expert parallelism 2, data-parallel attention 2, 8
redundant experts, no all-to-all backend) serving a small model of 6 layers, 32 experts, top-4. The per_token dump is of
the requests in ``../tiny_affinity.npz``: the same tokens, once as the recorder wrote them and once as the engine
returned them to the client (``return_routed_experts``).

Run with ``python tests/data/sglang/cut_dumps.py FOLDER``, where FOLDER holds ``stat_mixed.pt`` and ``per_token``; the
cut files are written beside this script. Kept are 36 used and 4 unused steps of the stat dump; and of the per_token
dump the passes 10 to 28, in which rank 0 takes in the requests 0 and 1 and rank 1 the request 16, with the first
sequence of each prefill pass and as many rows of each decode pass as then have a request.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
USED_STEPS, UNUSED_STEPS = 36, 4
LAST_PASS = 28


def cut_stat(source: Path, target: Path) -> None:
    dump = torch.load(source, weights_only=True, map_location="cpu")
    counts = dump["logical_count"]
    busy = counts.flatten(1).any(dim=1)
    dump["logical_count"] = torch.cat([counts[busy][:USED_STEPS], counts[~busy][:UNUSED_STEPS]]).clone()
    save(dump, target)


def cut_rank(source: Path, target: Path) -> None:
    dump = torch.load(source, weights_only=True, map_location="cpu")
    slots = dump["last_physical_to_logical_map"].shape[1]
    records, requests = [], 0
    for record in dump["records"]:
        if record["forward_pass_id"] > LAST_PASS:
            break
        lengths = record["extend_seq_lens"]
        requests += bool(lengths)
        record["extend_seq_lens"] = lengths and lengths[:1]
        records.append(keep_tokens(record, lengths[0] if lengths else requests, slots))
    save({**dump, "records": records}, target)


def keep_tokens(record: dict[str, Any], tokens: int, slots: int) -> dict[str, Any]:
    record["input_ids"] = record["input_ids"][:tokens]
    record["positions"] = record["positions"][:tokens]
    ids = record["topk_ids_of_layer"][:, :tokens].clone()
    counts = [torch.bincount(row[row >= 0], minlength=slots) for row in ids.flatten(1).long()]
    return {**record, "topk_ids_of_layer": ids, "global_physical_count": torch.stack(counts).int()}


def save(dump: dict[str, Any], target: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    with target.open("wb") as file:  # through a handle, so that the file's name is not part of its bytes
        torch.save(dump, file)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    cut_stat(folder / "stat_mixed.pt", HERE / "stat_mixed.pt")
    for path in sorted((folder / "per_token").glob("*.pt")):
        cut_rank(path, HERE / "per_token" / path.name)
