"""What is hooked into SGLang, and whether each hook is in place.

SGLang only logs a hook whose target it cannot find, so every process checks its own hooks before it says what works.
"""

from __future__ import annotations

import logging
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from profiler.plugin import backport_0516, balancer
from profiler.plugin.ranks import RankSide
from profiler.plugin.routes import add_routes
from profiler.plugin.versions import installed_engine

logger = logging.getLogger(__name__)

DEMAND_VARIABLE = "MOEPLAN_PLUGIN_DEMAND"
"""Set to 0 to leave demand out altogether: otherwise captured CUDA graphs hold one small copy per MoE layer, also
while nothing is recorded."""

WEIGHT_UPDATER = "sglang.srt.managers.scheduler_components.weight_updater.SchedulerWeightUpdaterManager"
WEIGHT_UPDATES = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
)

HTTP_SERVER_MODULE = "sglang.srt.entrypoints.http_server"


@dataclass(frozen=True)
class Hook:
    """One hook.

    Attributes
    ----------
    target : str
        Dotted path of the function.
    kind : str
        Name of SGLang's hook type: ``AROUND`` or ``AFTER``.
    function : callable
    parts : tuple of str
        Parts of the contract that cannot work without it.
    """

    target: str
    kind: str
    function: Callable[..., Any]
    parts: tuple[str, ...]


class EnginePlugin:
    """The plugin in one process of the engine; which of its hooks ever run depends on the process."""

    def __init__(self) -> None:
        self._ranks = RankSide(missing_hooks=self.missing)
        version = installed_engine()
        self.hooks = [
            Hook(
                "sglang.srt.managers.scheduler.Scheduler.handle_dumper_control",
                "AROUND",
                self._control,
                ("placement", "checksums", "push", "demand"),
            ),
            Hook(
                "sglang.srt.managers.tokenizer_manager.TokenizerManager.__init__",
                "AFTER",
                _after_tokenizer_manager,
                ("placement", "checksums", "push", "demand"),
            ),
            *(Hook(f"{WEIGHT_UPDATER}.{name}", "AROUND", self._weight_update, ()) for name in WEIGHT_UPDATES),
            Hook("sglang.srt.model_executor.model_runner.ModelRunner.forward", "AROUND", self._forward, ("demand",)),
            Hook("sglang.srt.managers.scheduler.Scheduler.run_batch", "AROUND", self._run_batch, ("demand",)),
            Hook("sglang.srt.managers.scheduler.Scheduler.process_batch_result", "AROUND", self._result, ("demand",)),
            Hook("sglang.srt.layers.moe.topk.capture_routed_experts_if_allowed", "AROUND", self._capture, ("demand",)),
        ]
        if balancer.is_asked_for():
            self.hooks.append(Hook(balancer.TARGET, "AROUND", balancer.around_init_by_eplb, ("balancer",)))
        self._without_demand = os.environ.get(DEMAND_VARIABLE) == "0"
        if self._without_demand:
            self.hooks = [hook for hook in self.hooks if hook.parts != ("demand",)]
        if backport_0516.is_backported(version):
            self.hooks += [Hook(target, "AROUND", hook, ("push",)) for target, hook in backport_0516.targets().items()]

    def install(self) -> None:
        """Register all hooks; SGLang applies them when every plugin has registered its own."""
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        for hook in self.hooks:
            HookRegistry.register(hook.target, hook.function, getattr(HookType, hook.kind))

    def missing(self) -> dict[str, str]:
        """Return, for parts whose hooks are not all in place in this process, which one is missing."""
        missing: dict[str, str] = {}
        if self._without_demand:
            missing["demand"] = f"the engine was started with {DEMAND_VARIABLE}=0."
        for hook in self.hooks:
            if not is_in_place(hook):
                for part in hook.parts:
                    missing.setdefault(part, f"the hook on {hook.target} is not in place in this engine.")
        return missing

    # SGLang wraps with functools.wraps, so plain functions are handed over, not bound methods of other classes.

    def _control(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.around_control(original, *args, **kwargs)

    def _forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.demand.around_forward(original, *args, **kwargs)

    def _weight_update(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.around_weight_update(original, *args, **kwargs)

    def _run_batch(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.demand.around_run_batch(original, *args, **kwargs)

    def _result(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.demand.around_result(original, *args, **kwargs)

    def _capture(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self._ranks.demand.around_capture(original, *args, **kwargs)


def is_in_place(hook: Hook) -> bool:
    """Whether the target, as it is now, runs the hook somewhere in its chain of wrappers."""
    try:
        target = pkgutil.resolve_name(hook.target.rpartition(".")[0])
        function = getattr(target, hook.target.rpartition(".")[2])
    except (ImportError, AttributeError):
        return False
    return any(_runs(wrapper, hook.function) for wrapper in _wrappers(function))


def _wrappers(function: Any) -> Iterator[Any]:
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def _runs(wrapper: Any, hook: Callable[..., Any]) -> bool:
    cells = getattr(wrapper, "__closure__", None) or ()
    return any(cell.cell_contents == hook for cell in cells)


def _after_tokenizer_manager(_result: Any, tokenizer_manager: Any, *_args: Any, **_kwargs: Any) -> None:
    """Add the routes once the HTTP server's module exists; plugins load before it is imported."""
    http_server = sys.modules.get(HTTP_SERVER_MODULE)
    if http_server is None:
        return  # an engine without an HTTP server (sglang.Engine in Python)
    try:
        add_routes(http_server.app, tokenizer_manager)
    except Exception:
        logger.exception("moeplan: the routes could not be added")
