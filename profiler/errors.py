"""What can go wrong while reading, writing, recording and pushing.

::

    ProfilerError                      one sentence with a code, like everything in ``placement.errors``
     +-- InputNotFound, OutputNotWritable, AddressNotAvailable
     +-- ExportFormatUnknown, ExportNameInvalid, ExportNeedsModel
     +-- UnreadableInput               a file is not what it should be
     |    +-- UnknownFormat, UnreadableDump, UnsafePickle, ArchiveInflates, TraceVersionUnknown
     |    +-- BadJson, PlanVersionUnknown, PlanHashMismatch
     |    +-- BadCountType, NonFiniteCount, BadCountShape
     |    +-- InputsDisagree           two inputs describe different models
     +-- NoGpu, CalibrationFailed      measuring a hardware profile
     +-- MissingRanks, MapChanged      a recording that must not be planned from as it is
     +-- EngineError                   the engine refused, vanished or answered nonsense
          +-- EngineUnreachable, NotAnEngine, EngineRefused, EngineFailed, EngineAnswerInvalid, EngineBusy
          +-- PluginMissing, RecorderDisabled, RoutedExpertsDisabled, ModelUnknown
                                                                  (what the engine lacks or does not say)
          +-- RecordingNeedsLimit, DumpNotFound, DumpIncomplete, DumpAmbiguous, DumpForeign,
              EngineLostDuringDump                                (capture without the plugin)
          +-- SampleFailed                                        (sampling of requests)
          +-- LayoutHashMismatch, DispatchNotSet, DispatchCombo, PartialApply, ApplyStalled,
              PostPushCheckFailed, WeightsChanged, NoPreviousLayout, EngineRestarted
                                                                  (push and rollback)
          +-- ModelWithoutExpertLocation, ScalesLeftBehind, NotEnoughMemory, EngineVersionUntested,
              EngineShapeUnsupported, EngineRebalances            (why an engine cannot be pushed)
"""

from __future__ import annotations

from placement.errors import CodedError


class ProfilerError(CodedError):
    """Reading, writing or talking to an engine failed."""


class InputNotFound(ProfilerError):
    """The input file or folder does not exist."""


class OutputNotWritable(ProfilerError):
    """The output file cannot be written."""


class ExportFormatUnknown(ProfilerError):
    """There is no writer for this engine's layout format."""


class ExportNameInvalid(ProfilerError):
    """The engine would not take a file of this name for a layout."""


class ExportNeedsModel(ProfilerError):
    """This engine's format needs the model's configuration."""


class AddressNotAvailable(ProfilerError):
    """The address to listen on is in use, or not one of this machine."""


class NoGpu(ProfilerError):
    """There is no GPU to measure."""


class CalibrationFailed(ProfilerError):
    """Measuring the GPUs failed."""


class UnreadableInput(ProfilerError):
    """The input cannot be read."""


class UnknownFormat(UnreadableInput):
    """The file is in none of the supported formats."""


class UnreadableDump(UnreadableInput):
    """The dump is empty, truncated or damaged."""


class UnsafePickle(UnreadableInput):
    """The file asks for code to be run; only tensors and plain containers are loaded."""


class ArchiveInflates(UnreadableInput):
    """The archive unpacks to far more than its own size."""


class TraceVersionUnknown(UnreadableInput):
    """The trace was written by a newer moeplan."""


class BadJson(UnreadableInput):
    """The file is not JSON, or is JSON that readers understand differently."""


class PlanVersionUnknown(UnreadableInput):
    """The plan was written by a newer moeplan."""


class PlanHashMismatch(UnreadableInput):
    """The layout in the plan is not the one that its hash was made of."""


class BadCountType(UnreadableInput):
    """A count is not a whole number."""


class NonFiniteCount(UnreadableInput):
    """A count is NaN or infinite."""


class BadCountShape(UnreadableInput):
    """Counts are not a table of layers x experts, with or without windows."""


class InputsDisagree(UnreadableInput):
    """The inputs describe different models."""


class MissingRanks(ProfilerError):
    """Files of some ranks are missing, so the recording holds only part of the traffic."""


class MapChanged(ProfilerError):
    """The layout changed while recording, so slot counts cannot be turned back into expert counts."""


class EngineError(ProfilerError):
    """The engine did not do what was asked."""


class EngineUnreachable(EngineError):
    """The engine does not answer."""


class NotAnEngine(EngineError):
    """Something answers at this address, but it is no SGLang."""


class EngineRefused(EngineError):
    """The engine refused the request."""


class EngineFailed(EngineError):
    """The engine failed while doing what was asked; what of it was done is unknown."""


class EngineAnswerInvalid(EngineError):
    """The engine's answer is not what its contract says."""


class EngineBusy(EngineError):
    """Another push or recording is under way on this engine."""


class PluginMissing(EngineError):
    """The engine answers, but moeplan's plugin is not alive in it."""


class RecorderDisabled(EngineError):
    """The engine was started without its expert distribution recorder."""


class RoutedExpertsDisabled(EngineError):
    """The engine was started without returning the routed experts of requests."""


class ModelUnknown(EngineError):
    """The engine does not say what its model's layers and experts are."""


class RecordingNeedsLimit(EngineError):
    """The recorder keeps every forward pass in memory, so it must not run for long."""


class DumpNotFound(EngineError):
    """The engine has dumped its record, but no new file is in the folder."""


class DumpIncomplete(EngineError):
    """Files of a dump are missing or were never finished."""


class DumpAmbiguous(EngineError):
    """More than one recording appeared, so which is ours is unknown."""


class DumpForeign(EngineError):
    """The dump does not fit the engine that was asked for it."""


class EngineLostDuringDump(EngineError):
    """The engine ended while it wrote its record."""


class SampleFailed(EngineError):
    """No request could be sampled."""


class LayoutHashMismatch(EngineError):
    """The engine runs another layout than the one expected."""


class ModelWithoutExpertLocation(EngineError):
    """SGLang serves this model with no other layout than its own."""


class ScalesLeftBehind(EngineError):
    """The engine would move experts without all of their tensors."""


class NotEnoughMemory(EngineError):
    """A GPU has no room for the experts of one layer beside those it has."""


class EngineVersionUntested(EngineError):
    """This SGLang was never tested, so it is not changed."""


class EngineShapeUnsupported(EngineError):
    """The engine is parallel in a way that the plugin does not know."""


class EngineRebalances(EngineError):
    """The engine's own balancer would overwrite a pushed layout."""


class EngineRestarted(EngineError):
    """The engine was started anew while something was under way."""


class DispatchNotSet(EngineError):
    """The engine was started without a dispatch algorithm, so a pushed layout would be silently wrong."""


class DispatchCombo(EngineError):
    """The engine's dispatch algorithm gives wrong answers with its all-to-all backend once experts have replicas."""


class PartialApply(EngineError):
    """Only some layers of the layout were applied.

    Attributes
    ----------
    new_layers, old_layers : tuple of int
        Decoder layers that run the pushed layout, and those that still run the one before.
    """

    def __init__(
        self,
        detail: str = "",
        *,
        new_layers: tuple[int, ...] = (),
        old_layers: tuple[int, ...] = (),
        remedies: tuple[str, ...] = (),
    ) -> None:
        self.new_layers = new_layers
        self.old_layers = old_layers
        super().__init__(detail, remedies=remedies)


class ApplyStalled(EngineError):
    """A push is still under way in the engine long after it should have ended."""


class PostPushCheckFailed(EngineError):
    """The engine does not report the layout that was pushed."""


class WeightsChanged(EngineError):
    """The engine's weights were updated while a layout was pushed, so that slots cannot be compared with before."""


class NoPreviousLayout(EngineError):
    """No layout is known to go back to."""
