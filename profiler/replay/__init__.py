"""The replay engine: a real HTTP server that plays a recorded token trace as SGLang with moeplan's plugin would.

It makes requests out of the trace, batches them step by step, dispatches every (token, expert) pair by SGLang's
rules under the layout at hand, and answers SGLang's recorder routes and the plugin's. It never says to be a GPU:
every answer carries ``"engine": "moeplan-replay"`` and ``"simulated": true``; counts are real, times are not.
"""

from profiler.replay.options import Faults, ReplayOptions
from profiler.replay.run import running_replay, serve_replay

__all__ = ["Faults", "ReplayOptions", "running_replay", "serve_replay"]
