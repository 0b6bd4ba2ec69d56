"""Sockets of our HTTP servers."""

from __future__ import annotations

import socket

from profiler.http_server import listening_on


def test_answers_are_not_held_back_for_an_acknowledgement() -> None:
    with listening_on("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
