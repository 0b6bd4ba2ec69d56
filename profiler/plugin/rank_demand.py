"""Demand on a scheduler rank: the hooks that see routing, and the orders that start, stop and fetch a recording."""

from __future__ import annotations

import base64
import logging
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from profiler.engine.contract_demand import DemandOptions
from profiler.engine.json_fields import Fields
from profiler.plugin.demand_recorder import DemandRecorder, RankWindow
from profiler.plugin.graph_tap import GraphTap
from profiler.plugin.orders import OrderRefused
from profiler.plugin.own_rows import gathered_tokens, step_rows, unused_tokens
from profiler.plugin.rank_view import RankView, location_metadata, moe_layers, view_rank, wait_for_device
from profiler.plugin.step_log import LoggedStep

logger = logging.getLogger(__name__)

STEPS_OF_RESULT = "moeplan_steps"
"""Attribute of SGLang's batch results that holds the steps which made them."""

NOBODY_NAMED = "somebody who gave no name"


class RankDemand:
    """Records on one rank what its router chose.

    Parameters
    ----------
    generation
        Returns the number of applied pushes.
    """

    def __init__(self, generation: Callable[[], int]) -> None:
        self._generation = generation
        self._recorder: DemandRecorder | None = None
        self._view: RankView | None = None
        self._tap: GraphTap | None = None
        self._failure = ""
        self._launched: list[tuple[DemandRecorder, LoggedStep]] | None = None

    # -- hooks ---------------------------------------------------------------------------------------------------

    def around_forward(
        self, original: Callable[..., Any], model_runner: Any, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Frame a forward pass of the served model (hook on ``ModelRunner.forward``)."""
        recorder = self._recorder
        if recorder is None or not recorder.takes_steps or model_runner.is_draft_worker:
            return original(model_runner, forward_batch, *args, **kwargs)
        self._guarded(lambda: recorder.begin_step(step_rows(forward_batch)))
        output = original(model_runner, forward_batch, *args, **kwargs)

        def end() -> None:
            step = recorder.end_step(
                number=int(model_runner.forward_pass_id),
                generation=self._generation(),
                captured=self._tap if getattr(output, "can_run_graph", False) else None,
            )
            if step is None:
                return
            if self._launched is None:  # not a batch of the scheduler, so nobody will look at its result
                recorder.settle(step)
            else:
                self._launched.append((recorder, step))

        self._guarded(end)
        return output

    def around_run_batch(
        self, original: Callable[..., Any], scheduler: Any, batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Tie the steps of a batch to its result (hook on ``Scheduler.run_batch``)."""
        if self._recorder is None or not self._recorder.takes_steps:
            return original(scheduler, batch, *args, **kwargs)
        launched = self._launched = []
        try:
            result = original(scheduler, batch, *args, **kwargs)
        finally:
            self._launched = None
        if launched:
            self._guarded(lambda: setattr(result, STEPS_OF_RESULT, launched))
        return result

    def around_result(
        self, original: Callable[..., Any], scheduler: Any, batch: Any, result: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Count a batch's steps (hook on ``Scheduler.process_batch_result``)."""
        launched: list[tuple[DemandRecorder, LoggedStep]] | None = getattr(result, STEPS_OF_RESULT, None)
        if launched:

            def settle() -> None:
                delattr(result, STEPS_OF_RESULT)
                for recorder, step in launched:
                    recorder.settle(step, unused_tokens=unused_tokens(scheduler, batch, tokens=step.rows.tokens))

            self._guarded(settle)
        return original(scheduler, batch, result, *args, **kwargs)

    def around_capture(
        self, original: Callable[..., Any], topk_config: Any, layer_id: int | None, topk_ids: Any
    ) -> None:
        """See a layer's logical expert ids (hook on ``capture_routed_experts_if_allowed``)."""
        import torch

        original(topk_config, layer_id, topk_ids)
        if torch.compiler.is_compiling() or layer_id is None or not topk_config.allow_routed_experts_capture:
            return
        recorder = self._recorder
        if recorder is not None and recorder.in_step:
            view = self._view
            if view is not None:
                self._guarded(lambda: recorder.count_layer(layer_id, topk_ids, padded_tokens=gathered_tokens(view)))
        elif topk_ids.is_cuda and _capturing_graphs():
            self._guarded(lambda: self._tap_into(layer_id, topk_ids))

    def _tap_into(self, layer: int, topk_ids: Any) -> None:
        import torch

        if self._tap is None:
            metadata = location_metadata()
            if metadata is None:
                return
            self._tap = GraphTap(layers=int(metadata.num_layers), top_k=int(topk_ids.shape[1]))
        if torch.cuda.is_current_stream_capturing():
            self._tap.write(layer, topk_ids)
        else:
            self._tap.make_room(topk_ids)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run something of ours inside the engine: a failure ends the recording, never the engine."""
        try:
            action()
        except Exception as error:
            logger.exception("moeplan: recording stopped")
            self._failure = f"{type(error).__name__}: {error}"
            if self._recorder is not None:
                self._recorder.recording = False

    # -- orders --------------------------------------------------------------------------------------------------

    def start(self, order: Fields, *, model_runner: Any, server_args: Any) -> dict[str, Any]:
        """Begin a recording; the ring of the one before is given up.

        Raises
        ------
        OrderRefused
            ``RECORDING_IN_PROGRESS``, saying whose it is, unless it is to be taken over.
        """
        options = DemandOptions.from_json(order.value("options"))
        before = self._recorder
        taken_over = before is not None and before.recording
        if before is not None and taken_over and not options.take_over:
            raise OrderRefused(_busy(before), code="RECORDING_IN_PROGRESS")
        metadata = location_metadata()
        self._view = view_rank(server_args)
        self._failure = ""
        wait_for_device()
        self._recorder = DemandRecorder(
            layers=int(metadata.num_layers),
            experts=int(metadata.num_logical_experts),
            device=metadata.physical_to_logical_map.device,
            view=self._view,
            options=options,
            recording_id=order.text("recording_id"),
            tap=self._tap,
        )
        ended = (before.options.owner or NOBODY_NAMED) if before is not None and taken_over else ""
        return self.state() | {"taken_over_from": ended}

    def stop(self) -> dict[str, Any]:
        """End the recording."""
        recorder = self._held()
        if recorder.recording:
            wait_for_device()
            recorder.stop()
        return self.state()

    def rotate(self) -> dict[str, Any]:
        """Close the window at hand, on all ranks between the same two steps."""
        recorder = self._held()
        if recorder.recording:
            wait_for_device()
            recorder.close_window()
        return self.state()

    def fetch(self, max_windows: int, *, model_runner: Any) -> dict[str, Any]:
        """Hand over finished windows, counts as little-endian int64, zlib and base64."""
        recorder = self._held()
        if self._failure:
            raise OrderRefused(f"the recording broke off: {self._failure}", code="ROUTING_NOT_SEEN")
        wait_for_device()
        windows = [_window_json(window) for window in recorder.fetch(max_windows)]
        metadata = location_metadata()
        view = self._view
        return self.state() | {
            "windows": windows,
            "remaining": recorder.finished_windows,
            "dropped_windows": recorder.dropped_windows,
            "layers": int(metadata.num_layers),
            "experts": int(metadata.num_logical_experts),
            "sources": view.sources if view is not None else 1,
            "source": view.source if view is not None else 0,
            "moe_layers": list(moe_layers(model_runner.model)),
            "top_k": int(getattr(model_runner.model_config.hf_text_config, "num_experts_per_tok", 0)),
        }

    def state(self) -> dict[str, Any]:
        """Return recording, its name, its steps, whose it is, and for how long nobody has fetched from it."""
        recorder = self._recorder
        return {
            "recording": recorder is not None and recorder.recording,
            "recording_id": recorder.recording_id if recorder is not None else "",
            "steps": recorder.steps if recorder is not None else 0,
            "owner": recorder.options.owner if recorder is not None else "",
            "unfetched_s": recorder.unfetched_s if recorder is not None else 0.0,
        }

    def _held(self) -> DemandRecorder:
        if self._recorder is None:
            raise OrderRefused("nothing was recorded since the engine started.", code="NO_RECORDING")
        return self._recorder


def _busy(recorder: DemandRecorder) -> str:
    owner = recorder.options.owner or NOBODY_NAMED
    return (
        f"recording {recorder.recording_id} of {owner} is under way (last fetched {recorder.unfetched_s:.0f} s ago, it "
        f"ends by itself after {recorder.options.lease_seconds:g} s without a fetch); stop it or take it over."
    )


def _capturing_graphs() -> bool:
    """Whether the engine warms up or captures CUDA graphs now."""
    from sglang.srt.model_executor.runner_utils.capture_mode import get_is_capture_mode

    return bool(get_is_capture_mode())


def _window_json(window: RankWindow) -> dict[str, Any]:
    counts = np.ascontiguousarray(window.counts_FLE(), dtype="<i8")
    message = {name: value for name, value in vars(window).items() if name != "counts"}
    return message | {"counts": base64.b64encode(zlib.compress(counts.tobytes(), level=1)).decode("ascii")}
