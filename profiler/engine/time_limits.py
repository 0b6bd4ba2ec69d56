"""How long an engine may take to answer, by what it is asked, and how often a request that only reads is sent.

An engine under load answers late and is none the worse for it. SGLang and the plugin have limits of their own, and say
so when they are over; so the client waits a little longer than these, and a silent engine is still told from a slow
one: it does not even take the connection.
"""

from __future__ import annotations

CONNECT_S = 10.0
"""Until the connection stands, whatever is asked."""

HTTP_S = 10.0
"""What the HTTP server knows by itself."""

HEALTH_S = 30.0
"""SGLang's ``/health`` waits up to 20 s for a token, the plugin's up to 10 s for the ranks."""

RANKS_S = 75.0
"""What the scheduler ranks answer: they do so between two batches, or when a chunk of a push has been moved. The plugin
gives up after 60 s (``profiler.plugin.carrier``)."""

CHECKSUMS_S = 600.0
"""Checksums are read layer by layer with batches in between, and reading a layer takes as long as its bytes."""

PUSH_TIMEOUT_S = 600.0
"""A push, without the pauses between its chunks."""

DUMP_S = 60.0
"""The recorder writes its files before it answers."""

ATTEMPTS = 2
"""Of requests that change nothing and take nothing away: a connection may end while nobody looks, when an engine has
closed one that was kept for the next request."""
