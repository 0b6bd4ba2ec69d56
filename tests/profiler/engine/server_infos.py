"""What engines say of themselves, as ``/server_info`` answers."""

from __future__ import annotations

from typing import Any


def server_info(**changes: Any) -> dict[str, Any]:
    """Return the arguments of a two-GPU engine on which everything works; secrets are in it, as in SGLang's answer."""
    info = {
        "version": "0.5.23",
        "model_path": "some/model",
        "tp_size": 2,
        "dp_size": 2,
        "ep_size": 2,
        "pp_size": 1,
        "nnodes": 1,
        "enable_dp_attention": True,
        "moe_a2a_backend": "deepep",
        "ep_dispatch_algorithm": "dynamic",
        "ep_num_redundant_experts": 1,
        "init_expert_location": "trivial",
        "enable_eplb": False,
        "expert_distribution_recorder_mode": "stat",
        "expert_distribution_recorder_buffer_size": 1000,
        "expert_balancedness_report_mode": "off",
        "enable_return_routed_experts": True,
        "disable_overlap_schedule": True,
        "api_key": None,
        "admin_api_key": "the-admin-key",
    }
    return {**info, **changes}
