"""Serve an application with uvicorn, with limits that uvicorn lacks: header time, connections.

A client that never finishes its headers holds a file descriptor. Without free descriptors, asyncio
accepts no connection and writes a traceback for each attempt.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any, ClassVar

from assay.errors import MissingExtra

# Time limit from the connection, or the first byte of a request, to the end of the headers.
HEADER_SECONDS = 10.0
# File descriptors reserved for worker processes and for requests to other servers.
SPARE_FILES = 256
MOST_CONNECTIONS = 10_000


def run_server(app: Any, listening: socket.socket, command: str) -> None:
    """Serve requests until a signal arrives. Finishes the requests in progress."""
    server(app, command, connections_possible()).run(sockets=[listening])


def server(app: Any, command: str, most_connections: int, **settings: Any) -> Any:
    """Create the uvicorn server of an application. Raises MissingExtra."""
    try:
        import uvicorn  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtra.of("uvicorn", "serve", f"assay {command}") from error
    usual: dict[str, Any] = {
        # At a lower level, any client could flood the log by sending invalid HTTP.
        "log_level": "error",
        "access_log": False,
        # asyncio accepts a whole backlog before it handles the first connection, so the backlog
        # must stay far below SPARE_FILES.
        "backlog": 48,
        "lifespan": "on",
        "ws": "none",
        "timeout_keep_alive": 60,
        "timeout_graceful_shutdown": 10,
    }
    http = timed_protocol(most_connections)
    return uvicorn.Server(uvicorn.Config(app, http=http, **(usual | settings)))


def connections_possible() -> int:
    """Raise the file limit to its maximum. Returns the number of connections that it allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    known = wanted if soft == resource.RLIM_INFINITY else min(soft, wanted)
    return max(8, known - SPARE_FILES)


def timed_protocol(most_connections: int) -> Any:
    """Return uvicorn's HTTP protocol class with a timeout for headers.

    A connection beyond most_connections replaces the one that has waited longest for its headers.
    If all connections are busy, the new one is closed.
    """
    import h11  # pyright: ignore[reportMissingImports]
    from uvicorn.protocols.http.h11_impl import (  # pyright: ignore[reportMissingImports]
        H11Protocol,
    )

    class TimedProtocol(H11Protocol):
        # Connections without complete headers, the oldest first.
        headless: ClassVar[dict[Any, asyncio.TimerHandle]] = {}

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            if len(self.connections) > most_connections:
                oldest = next(iter(self.headless), self)
                oldest.transport.abort()
                oldest.stop_clock()
                self.connections.discard(oldest)
                if oldest is self:
                    return
            self.start_clock()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is h11.IDLE:
                self.start_clock()
            else:
                self.stop_clock()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]:
                # The next request has begun already.
                self.start_clock()

        def connection_lost(self, exc: Exception | None) -> None:
            self.stop_clock()
            super().connection_lost(exc)

        def start_clock(self) -> None:
            if self not in self.headless:
                late = self.loop.call_later(HEADER_SECONDS, self.transport.abort)
                self.headless[self] = late

        def stop_clock(self) -> None:
            if clock := self.headless.pop(self, None):
                clock.cancel()

    return TimedProtocol
