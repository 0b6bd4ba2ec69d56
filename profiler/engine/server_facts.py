"""What an SGLang says of itself in its server arguments, as far as experts are concerned.

Source: ``/server_info`` of ``srt/entrypoints/http_server.py``, SGLang 0.5.16 and 0.5.23. The answer also holds the
engine's keys; nothing but the fields named here is taken out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiler.engine.contract import REPLAY_ENGINE
from profiler.engine.json_fields import Fields

DETAIL_MODES = ("per_pass", "per_token")
"""Modes of the recorder that keep every forward pass until they are dumped."""


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Server arguments that bear on experts.

    Attributes
    ----------
    version, model : str
        SGLang's version; the model's path. Empty where unknown.
    simulated : bool
        True for the replay engine.
    tp_size, dp_size, ep_size, pp_size, nodes : int
        Parallel sizes.
    dp_attention : bool
        Whether every data-parallel rank is a part of the one EP group, so that tokens have home GPUs.
    a2a_backend : str
        ``--moe-a2a-backend``; ``none`` when every rank sees every token.
    dispatch : str or None
        ``--ep-dispatch-algorithm``.
    redundant_experts : int
        ``--ep-num-redundant-experts``.
    init_expert_location : str
        ``--init-expert-location``; ``trivial`` without one.
    rebalances : bool
        ``--enable-eplb``: the engine's own balancer moves experts and owns the recorder.
    recorder_mode : str or None
        ``--expert-distribution-recorder-mode``.
    recorder_ring_steps : int or None
        Steps that mode ``stat`` keeps; None is without a limit.
    recorder_always_on : bool
        The engine records from its start for its metrics of balancedness.
    returns_routed_experts : bool
        ``--enable-return-routed-experts``.
    overlaps : bool
        Whether a step is launched before the result of the last one is looked at (no ``--disable-overlap-schedule``).
    """

    version: str
    model: str
    simulated: bool
    tp_size: int
    dp_size: int
    ep_size: int
    pp_size: int
    nodes: int
    dp_attention: bool
    a2a_backend: str
    dispatch: str | None
    redundant_experts: int
    init_expert_location: str
    rebalances: bool
    recorder_mode: str | None
    recorder_ring_steps: int | None
    recorder_always_on: bool
    returns_routed_experts: bool
    overlaps: bool

    @property
    def all_to_all(self) -> bool:
        """Whether tokens are sent to the GPUs of their experts, instead of every GPU seeing all."""
        return self.a2a_backend != "none"

    @property
    def source_ranks(self) -> int | None:
        """Data-parallel ranks that tokens live on; None where they have no home of their own."""
        return self.dp_size if self.dp_attention and self.dp_size > 1 else None

    @property
    def dump_files(self) -> int:
        """Files that one dump of the recorder consists of: one of rank 0, or one of every rank."""
        return self.tp_size * self.pp_size if self.recorder_mode in DETAIL_MODES else 1

    def to_dict(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return vars(self).copy()


def server_facts(info: Mapping[str, Any]) -> ServerFacts:
    """Read the answer of ``/server_info``; what an SGLang version does not name has SGLang's default.

    Raises
    ------
    ContractViolation
        A field has another type than SGLang gives it.
    """
    fields = Fields(info, "server_info")
    ring = _ring_steps(info)
    return ServerFacts(
        version=fields.optional("version", fields.text) or "",
        model=fields.optional("model_path", fields.text) or "",
        simulated=info.get("engine") == REPLAY_ENGINE,
        tp_size=_size(fields, "tp_size"),
        dp_size=_size(fields, "dp_size"),
        ep_size=_size(fields, "ep_size"),
        pp_size=_size(fields, "pp_size"),
        nodes=_size(fields, "nnodes"),
        dp_attention=_flag(fields, "enable_dp_attention"),
        a2a_backend=fields.optional("moe_a2a_backend", fields.text) or "none",
        dispatch=fields.optional("ep_dispatch_algorithm", fields.text),
        redundant_experts=fields.optional("ep_num_redundant_experts", fields.integer) or 0,
        init_expert_location=_start_layout(fields),
        rebalances=_flag(fields, "enable_eplb"),
        recorder_mode=fields.optional("expert_distribution_recorder_mode", fields.text),
        recorder_ring_steps=ring,
        recorder_always_on=_reports_balancedness(fields),
        returns_routed_experts=_flag(fields, "enable_return_routed_experts"),
        overlaps=not _flag(fields, "disable_overlap_schedule"),
    )


def looks_like_sglang(info: Mapping[str, Any]) -> bool:
    """Return whether an answer to ``/server_info`` can be SGLang's: other servers have no such arguments."""
    return "tp_size" in info and "version" in info


def _size(fields: Fields, name: str) -> int:
    return fields.optional(name, lambda key: fields.integer(key, minimum=1)) or 1


def _flag(fields: Fields, name: str) -> bool:
    return bool(fields.optional(name, fields.flag))


def _ring_steps(info: Mapping[str, Any]) -> int | None:
    steps = info.get("expert_distribution_recorder_buffer_size")
    return steps if type(steps) is int and steps > 0 else None


def _start_layout(fields: Fields) -> str:
    """Return the layout of the start; one given as JSON text is only named, for it can be of any length."""
    given = fields.optional("init_expert_location", fields.text) or "trivial"
    return given if given == "trivial" or given.endswith((".pt", ".json")) else "inline JSON"


def _reports_balancedness(fields: Fields) -> bool:
    """Find the switch of SGLang's metrics of balancedness: one flag up to 0.5.16, another from 0.5.18 on."""
    mode = fields.optional("expert_balancedness_report_mode", fields.text) or "off"
    return mode != "off" or _flag(fields, "enable_expert_distribution_metrics")
