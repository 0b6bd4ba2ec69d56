"""The doctor's checks, one function each: a state, a sentence, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from placement.layout import Layout
from profiler.engine.access import Access
from profiler.engine.contract import ABILITIES, Placement, PluginHealth
from profiler.engine.models import without_expert_location
from profiler.engine.refusals import DISPATCH_FLAG
from profiler.engine.server_facts import DETAIL_MODES, ServerFacts
from profiler.plugin.versions import EngineVersion, Trust

State = Literal["works", "limited", "missing", "unknown"]

INSTALL_PLUGIN = "pip install --no-deps moeplan into the engine's environment on every host, then restart the engine"
READ_KEY = "give the engine's API key with --engine-read-key"
ADMIN_KEY = "give the engine's admin key with --engine-key"
RECORDER_FLAG = "--expert-distribution-recorder-mode stat"
ROUTED_EXPERTS_FLAG = "--enable-return-routed-experts"
DROP_IN = "the plugin and MOEPLAN_PLUGIN_EPLB=1 in the engine's environment"
FILES_INSTEAD = "moeplan export PLAN --out layout.json --print-restart"


@dataclass(frozen=True)
class Check:
    """One answer of the doctor.

    Attributes
    ----------
    name : str
    state : {"works", "limited", "missing", "unknown"}
        ``limited``: works, but not everything or not for everybody. ``unknown``: the engine does not let us see.
    detail : str
        What was found.
    remedy : str
        The flag to add to the engine's start, or the command to run; empty where nothing is to be done.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


@dataclass(frozen=True, eq=False)
class Findings:
    """What was read of the engine; see :class:`profiler.engine.doctor.Diagnosis`. ``trouble``: why health is None."""

    access: Access
    facts: ServerFacts | None
    health: PluginHealth | None
    trouble: str
    placement: Placement | None
    architectures: tuple[str, ...]

    @property
    def version(self) -> str:
        sources = (self.facts.version if self.facts else "", self.health.engine_version if self.health else "")
        return next(filter(None, sources), "")

    @property
    def dispatch(self) -> str | None:
        if self.facts is not None:
            return self.facts.dispatch
        return self.placement.dispatch if self.placement is not None else None

    @property
    def a2a_backend(self) -> str | None:
        """None where it is unknown."""
        if self.facts is not None:
            return self.facts.a2a_backend
        return self.placement.a2a_backend if self.placement is not None else None


def all_checks(found: Findings) -> Iterator[Check]:
    """Yield first what the engine is, then what can be done with it."""
    for check in (
        check_version,
        check_keys,
        check_plugin,
        check_recorder,
        check_dispatch,
        check_balancer,
        check_capture,
        check_capture_dumps,
        check_sample,
        check_push,
        check_layout_at_start,
        check_locality,
    ):
        yield check(found)


def check_version(found: Findings) -> Check:
    if any(source.simulated for source in (found.facts, found.health) if source is not None):
        return Check("version", "works", f"moeplan's replay engine (simulated), with the rules of {found.version}")
    if not found.version:
        return Check("version", "unknown", "the engine does not say which SGLang it is", READ_KEY)
    trust = EngineVersion.parse(found.version).trust
    if trust is Trust.TESTED:
        return Check("version", "works", f"SGLang {found.version}, which is tested")
    if trust is Trust.BETWEEN:
        return Check("version", "limited", f"SGLang {found.version}, between two tested versions")
    return Check("version", "limited", f"SGLang {found.version}, which was never tested")


def check_keys(found: Findings) -> Check:
    """Both levels together: reading, and recording or changing."""
    access = found.access
    levels = f"reading: {access.read}; recording and pushing: {access.admin}"
    if access.read.startswith("key ") and access.read != "key accepted":
        return Check("keys", "missing", levels, READ_KEY)
    if access.admin in ("key refused", "key needed"):
        return Check("keys", "missing", levels, ADMIN_KEY)
    if access.admin == "open" and not (found.facts is not None and found.facts.simulated):
        return Check("keys", "limited", f"{levels}: whoever reaches the engine can record and push", "--admin-api-key")
    return Check("keys", "works", levels)


def check_plugin(found: Findings) -> Check:
    if found.access.plugin_route is False:
        return Check("plugin", "missing", "moeplan's plugin is not in this engine", INSTALL_PLUGIN)
    health = found.health
    if health is None:
        return Check("plugin", "unknown", found.trouble or "its routes cannot be read without a key", ADMIN_KEY)
    where = f"version {health.moeplan_version} on {len(health.ranks)} of {health.ranks_expected} ranks"
    if len(health.ranks) != health.ranks_expected:
        return Check("plugin", "missing", where, INSTALL_PLUGIN)
    broken = [name for name in ABILITIES if not health.abilities[name].works]
    if broken:
        return Check("plugin", "limited", f"{where}; not {', '.join(broken)}: {health.abilities[broken[0]].reason}")
    return Check("plugin", "works", where)


def check_recorder(found: Findings) -> Check:
    facts = found.facts
    if facts is None:
        return Check("recorder", "unknown", "the engine's arguments cannot be read", READ_KEY)
    if facts.recorder_mode is None:
        return Check("recorder", "missing", "started without SGLang's recorder", RECORDER_FLAG)
    kept = "every forward pass, in memory" if facts.recorder_mode in DETAIL_MODES else _ring(facts)
    return Check("recorder", "works", f"mode {facts.recorder_mode}, which keeps {kept}")


def _ring(facts: ServerFacts) -> str:
    return "all steps" if facts.recorder_ring_steps is None else f"the last {facts.recorder_ring_steps} steps"


def check_dispatch(found: Findings) -> Check:
    backend = found.a2a_backend
    if backend is None:
        return Check("dispatch", "unknown", "the engine's arguments cannot be read", READ_KEY)
    said = f"{found.dispatch or 'none'}, all-to-all backend {backend}"
    lacking = without_expert_location(found.architectures)
    if lacking is not None and found.dispatch is None:
        return Check("dispatch", "works", f"{said}: {lacking} has one layout in SGLang, which needs none")
    if lacking is not None:
        detail = f"{said}: without expert location for {lacking}, its first request can end the engine"
        return Check("dispatch", "missing", detail, "without --ep-dispatch-algorithm")
    if found.dispatch is None:
        return Check("dispatch", "missing", f"{said}: expert ids are taken for slots", DISPATCH_FLAG)
    if found.dispatch != "dynamic":
        return Check("dispatch", "limited", f"{said}: plans are made for dynamic", DISPATCH_FLAG)
    return Check("dispatch", "works", said)


def check_balancer(found: Findings) -> Check:
    """Who changes the layout while the engine runs: nobody but pushes, SGLang's balancer, or moeplan in its place."""
    if found.facts is None and found.health is None:
        return Check("balancer", "unknown", "the engine's arguments cannot be read", READ_KEY)
    asked = "sglang" if found.facts is not None and found.facts.rebalances else "none"
    match found.health.balancer if found.health is not None and found.health.ranks else asked:
        case "moeplan":
            return Check("balancer", "works", "moeplan's layouts by --enable-eplb (drop-in mode); pushes are refused")
        case "sglang":
            detail = "SGLang's own by --enable-eplb; pushes are refused"
            return Check("balancer", "limited", detail, f"{DROP_IN}; or without --enable-eplb, to push")
    return Check("balancer", "works", "none: the layout changes by pushes only")


def check_capture(found: Findings) -> Check:
    """``moeplan capture`` through the plugin."""
    if found.health is None:
        return Check("capture", _as_plugin(found), "by source GPU and phase it needs the plugin", INSTALL_PLUGIN)
    demand = found.health.abilities["demand"]
    if not demand.works:
        return Check("capture", "missing", demand.reason)
    return Check("capture", "works", "by source GPU and phase", "moeplan capture --seconds 60 --out trace.parquet")


def check_capture_dumps(found: Findings) -> Check:
    """``moeplan capture --dump-dir`` with SGLang's own recorder."""
    facts = found.facts
    if facts is None:
        return Check("capture_dumps", "unknown", "the engine's arguments cannot be read", READ_KEY)
    lacking = without_expert_location(found.architectures)
    if lacking is not None:
        return Check("capture_dumps", "missing", f"SGLang has no recorder for {lacking}", "moeplan sample")
    if facts.recorder_mode is None:
        return Check("capture_dumps", "missing", "SGLang's recorder is off", RECORDER_FLAG)
    if facts.rebalances:
        return Check("capture_dumps", "missing", "the engine's own balancer uses the recorder", "without --enable-eplb")
    if found.access.admin in ("key refused", "key needed"):
        return Check("capture_dumps", "missing", "its routes want another key", ADMIN_KEY)
    command = "moeplan capture --dump-dir DIR --seconds 60 --out trace.parquet"
    detail = "where the engine's dump folder can be read; sources unknown"
    if facts.overlaps:
        detail += "; up to a token more for each request that ends (UNUSED_TOKENS_COUNTED)"
    return Check("capture_dumps", "works", detail, command)


def check_sample(found: Findings) -> Check:
    """``moeplan sample``."""
    facts = found.facts
    if facts is None:
        return Check("sample", "unknown", "the engine's arguments cannot be read", READ_KEY)
    if not facts.returns_routed_experts:
        return Check("sample", "missing", "the engine does not return routed experts", ROUTED_EXPERTS_FLAG)
    return Check("sample", "works", "token by token", "moeplan sample --prompts FILE --out trace.parquet")


def check_push(found: Findings) -> Check:
    """``moeplan push``."""
    lacking = without_expert_location(found.architectures)
    if lacking is not None:
        return Check("push", "missing", f"SGLang has no expert location for {lacking}: plans can only be made")
    if found.health is None:
        return Check("push", _as_plugin(found), "it needs the plugin", f"{INSTALL_PLUGIN}; or {FILES_INSTEAD}")
    ability = found.health.abilities["push"]
    if ability.works and found.dispatch is None and found.a2a_backend is not None:
        return Check("push", "missing", "expert ids are taken for slots, so answers would be wrong", DISPATCH_FLAG)
    if not ability.works:
        remedy = DISPATCH_FLAG if found.dispatch is None and found.a2a_backend is not None else ""
        return Check("push", "missing", ability.reason, remedy)
    if not found.health.abilities["checksums"].works:
        return Check("push", "limited", f"weights are not compared: {found.health.abilities['checksums'].reason}")
    return Check("push", "works", "verified by map and weights on every rank", "moeplan push PLAN.json")


def check_layout_at_start(found: Findings) -> Check:
    """``--init-expert-location`` with an exported file."""
    lacking = without_expert_location(found.architectures)
    if lacking is not None:
        return Check("layout_at_start", "missing", f"SGLang does not start {lacking} with a layout")
    if found.facts is None:
        return Check("layout_at_start", "unknown", "the engine's arguments cannot be read", READ_KEY)
    now = found.facts.init_expert_location
    if not found.architectures and not found.facts.simulated:
        return Check("layout_at_start", "unknown", "the engine does not name its model", FILES_INSTEAD)
    return Check("layout_at_start", "works", f"started with {now}", FILES_INSTEAD)


def check_layout(found: Findings, layout: Layout) -> Check:
    """Whether the engine runs a layout: read back, never taken from what it was started with or said."""
    placement, started = found.placement, found.facts.init_expert_location if found.facts is not None else "unknown"
    if placement is None:
        detail = f"LAYOUT_NOT_VERIFIED: started with {started}; what runs can be read with the plugin only"
        return Check("layout", "unknown", detail, INSTALL_PLUGIN)
    if placement.layout_hash != layout.hash or not placement.ranks_agree:
        detail = f"LAYOUT_NOT_APPLIED: {placement.layout_hash[:12]} runs, not {layout.hash[:12]}"
        return Check("layout", "missing", detail, f"moeplan push PLAN; or {FILES_INSTEAD}")
    return Check("layout", "works", f"{layout.hash[:12]} runs on every rank")


def check_locality(found: Findings) -> Check:
    """Whether serving tokens where they live can save traffic."""
    facts, backend = found.facts, found.a2a_backend
    if backend is None:
        return Check("locality", "unknown", "the engine's arguments cannot be read", READ_KEY)
    if backend == "none":
        detail = "every GPU sees every token: plans can balance, and there is no traffic to save"
        return Check("locality", "missing", detail, "--moe-a2a-backend deepep; until then plan --objective balance")
    if facts is not None and facts.source_ranks is None:
        detail = "tokens have no home GPU: there is one data-parallel rank"
        return Check("locality", "limited", detail, "--enable-dp-attention --dp N")
    if facts is not None and facts.dp_size != facts.ep_size:
        detail = f"{facts.dp_size} data-parallel ranks on {facts.ep_size} GPUs: a token lives on several"
        return Check("locality", "limited", detail, f"--dp {facts.ep_size}")
    return Check("locality", "works", "tokens live on one GPU and are sent to others")


def _as_plugin(found: Findings) -> State:
    return "missing" if found.access.plugin_route is False else "unknown"
