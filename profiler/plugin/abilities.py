"""Which parts of the contract work on this engine, and why not the others. Decided on every rank, from facts there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiler.engine.contract import ABILITIES, Ability
from profiler.plugin import checksums
from profiler.plugin.orders import OrderRefused
from profiler.plugin.placement_state import free_bytes
from profiler.plugin.rank_view import RankView, location_metadata, moe_layers, weights_of_layers
from profiler.plugin.versions import EngineVersion

SUPPORTED_DISPATCH_WITHOUT_ALL_TO_ALL = ("dynamic",)
SUPPORTED_DISPATCH = ("static", "dynamic")


def rank_abilities(
    model_runner: Any, server_args: Any, view: RankView, *, version: EngineVersion, missing_hooks: Mapping[str, str]
) -> dict[str, Ability]:
    """Return what works on this rank, one entry per name of ``ABILITIES``.

    Parameters
    ----------
    missing_hooks
        Part of the plugin -> reason, for hooks that are not in place.
    """
    found = {}
    for name, check in (
        ("placement", _placement),
        ("checksums", _checksums),
        ("push", check_push),
        ("demand", _demand),
    ):
        try:
            if name in missing_hooks:
                raise OrderRefused(missing_hooks[name], code="HOOK_MISSING")
            check(model_runner, server_args, view, version)
            found[name] = Ability(works=True)
        except OrderRefused as refusal:
            found[name] = Ability(works=False, reason=f"{refusal.code}: {refusal.detail}")
        except Exception as error:  # noqa: BLE001  (a probe must never take the engine down)
            found[name] = Ability(works=False, reason=f"PROBE_FAILED: {type(error).__name__}: {error}")
    return {name: found[name] for name in ABILITIES}


def _placement(model_runner: Any, _server_args: Any, _view: RankView, _version: EngineVersion) -> None:
    if location_metadata() is None:
        raise OrderRefused(
            f"{type(model_runner.model).__name__} has no expert location in SGLang; plans can only be made, not run.",
            code="MODEL_WITHOUT_EXPERT_LOCATION",
        )


def _checksums(model_runner: Any, server_args: Any, view: RankView, version: EngineVersion) -> None:
    _placement(model_runner, server_args, view, version)
    layers = set(moe_layers(model_runner.model))
    missing = sorted(layers - set(checksums.expert_modules(model_runner.model)))
    if missing:
        raise OrderRefused(f"the experts of layer {missing[0]} are in no FusedMoE module.", code="EXPERTS_NOT_FOUND")


def check_push(model_runner: Any, server_args: Any, view: RankView, version: EngineVersion) -> None:
    """Refuse engines on which a pushed layout would be wrong, overwritten or would not fit.

    Raises
    ------
    OrderRefused
        With a code and what to change.
    """
    _checksums(model_runner, server_args, view, version)
    if version.refusal():
        raise OrderRefused(version.refusal(), code="ENGINE_VERSION_UNTESTED")
    _check_dispatch(view, version)
    _check_shape(server_args, view)
    _check_tensors(model_runner)
    _check_memory(model_runner)


def _check_dispatch(view: RankView, version: EngineVersion) -> None:
    if view.dispatch is None:
        raise OrderRefused(
            "the engine was started without a dispatch algorithm and takes expert ids for slots; "
            "start it with --ep-dispatch-algorithm dynamic.",
            code="DISPATCH_NOT_SET",
        )
    allowed = SUPPORTED_DISPATCH if view.all_to_all else SUPPORTED_DISPATCH_WITHOUT_ALL_TO_ALL
    if view.dispatch not in allowed:
        raise OrderRefused(
            f"--ep-dispatch-algorithm {view.dispatch} with --moe-a2a-backend {view.a2a_backend} does not follow a "
            f"pushed layout; use {' or '.join(reversed(allowed))}.",
            code="DISPATCH_COMBO",
        )
    if not view.all_to_all and not _chooses_replicas_alike(version):
        raise OrderRefused(
            f"SGLang {version.text} without an all-to-all backend lets every rank choose replicas by itself, and the "
            "backport is tested on 0.5.16 only; use 0.5.16, 0.5.18 or newer, or an all-to-all backend.",
            code="ENGINE_VERSION_UNTESTED",
        )


def _chooses_replicas_alike(version: EngineVersion) -> bool:
    from sglang.srt.eplb.expert_location_dispatch import ExpertLocationDispatchInfo

    from profiler.plugin.backport_0516 import is_backported

    return "rank_invariant" in ExpertLocationDispatchInfo.__dataclass_fields__ or is_backported(version)


def _check_shape(server_args: Any, view: RankView) -> None:
    dp_size = int(getattr(server_args, "dp_size", 1) or 1)
    unsupported = {
        "pipeline parallelism": view.pp_size > 1,
        "an EP size that differs from the TP size": view.ep_size != view.tp_size,
        "several engines behind one port (--dp without --enable-dp-attention)": dp_size > 1 and not view.dp_attention,
        "elastic EP": bool(getattr(server_args, "elastic_ep_backend", None)),
        "--enable-dp-attention-local-control-broadcast": bool(
            getattr(server_args, "enable_dp_attention_local_control_broadcast", False)
        ),
    }
    for what, present in unsupported.items():
        if present:
            raise OrderRefused(f"{what} is not supported.", code="ENGINE_SHAPE_UNSUPPORTED")
    if getattr(server_args, "enable_eplb", False):
        raise OrderRefused(
            "the engine's own balancer would overwrite a pushed layout; start it without --enable-eplb "
            "(and with --ep-dispatch-algorithm, which it implies).",
            code="ENGINE_REBALANCES",
        )


def _check_tensors(model_runner: Any) -> None:
    weights = weights_of_layers(model_runner.model)
    for layer, module in checksums.expert_modules(model_runner.model).items():
        if layer not in moe_layers(model_runner.model):
            continue  # a draft layer in the same model
        left_behind = checksums.unmoved_tensors(module, list(weights[layer]))
        if left_behind:
            raise OrderRefused(
                f"SGLang would move the experts of layer {layer} without {', '.join(left_behind)}.",
                code="SCALES_LEFT_BEHIND",
            )


def _check_memory(model_runner: Any) -> None:
    free = free_bytes()
    layers = moe_layers(model_runner.model)
    module = checksums.expert_modules(model_runner.model)[layers[0]]
    needed = checksums.bytes_per_expert(module) * int(module.num_local_experts)
    if free is not None and free < needed:
        raise OrderRefused(
            f"receiving one layer takes {needed / 2**20:.0f} MiB on this GPU and {free / 2**20:.0f} MiB are free; "
            "lower --mem-fraction-static.",
            code="NOT_ENOUGH_MEMORY",
        )


def _demand(_model_runner: Any, server_args: Any, view: RankView, version: EngineVersion) -> None:
    if location_metadata() is None:
        raise OrderRefused("without expert location the numbers of experts are unknown.", code="MODEL_UNSUPPORTED")
    if version.refusal():
        raise OrderRefused(version.refusal(), code="ENGINE_VERSION_UNTESTED")
    if view.pp_size > 1:
        raise OrderRefused("pipeline parallelism is not supported.", code="ENGINE_SHAPE_UNSUPPORTED")
    for flag in ("enable_two_batch_overlap", "enable_mixed_chunk", "enable_single_batch_overlap"):
        if getattr(server_args, flag, False):
            raise OrderRefused(
                f"--{flag.replace('_', '-')} mixes or splits batches, so that rows cannot be told apart.",
                code="ENGINE_SHAPE_UNSUPPORTED",
            )
