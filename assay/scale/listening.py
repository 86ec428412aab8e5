"""Listening sockets, and a uvicorn server that limits connections and the time for headers.

Without a time limit, a client that never completes its headers would keep a file descriptor
forever. Without free file descriptors, asyncio accepts no connection, and prints a traceback for
each attempt.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from importlib.util import find_spec
from typing import Any, ClassVar

from assay.errors import MissingExtra, UserError, message

LOOPBACK = ("127.0.0.1", "::1", "localhost")

# Seconds from the connection, or from a request's first byte, until the headers must be complete.
HEADER_SECONDS = 10.0
# File descriptors that are reserved for worker processes and for requests to other servers.
SPARE_FILES = 256
MOST_CONNECTIONS = 10_000


def check_extra(command: str) -> None:
    """Raise MissingExtra if the packages of the extra ``serve`` are not installed."""
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise MissingExtra.of(package, "serve", f"assay {command}")


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """Open a listening socket. Raises UserError if the address is not available, or if a public
    address has no token."""
    if token is None and host not in LOOPBACK:
        found, accepted = f"{host} without a token", f"a token, or one of {', '.join(LOOPBACK)}"
        raise UserError(message("--host", found, accepted, "set the token's variable"))
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family)
    try:
        # Without SO_REUSEADDR, the port of a restarted server would be occupied for a minute.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((host, port))
        found.listen(1024)
    except (OSError, OverflowError) as error:
        found.close()
        where = f"--host {host} --port {port}"
        accepted = "an address of this machine that is free"
        raise UserError(message(where, str(error), accepted)) from error
    return found


def address_of(listening: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def run_server(app: Any, listening: socket.socket) -> None:
    """Serve requests until the process receives a signal. Finishes the requests in progress."""
    server(app, connections_possible()).run(sockets=[listening])


def server(app: Any, most_connections: int, **settings: Any) -> Any:
    """Create the uvicorn server of an ASGI application."""
    import uvicorn  # pyright: ignore[reportMissingImports]

    usual: dict[str, Any] = {
        # uvicorn logs a warning for invalid HTTP, with which any client could flood the log.
        "log_level": "error",
        "access_log": False,
        # asyncio accepts a whole backlog of connections before it handles the first of them.
        # The backlog must therefore be far smaller than the reserve SPARE_FILES.
        "backlog": 48,
        "lifespan": "on",
        "ws": "none",
        "timeout_keep_alive": 60,
        "timeout_graceful_shutdown": 10,
    }
    http = timed_protocol(most_connections)
    return uvicorn.Server(uvicorn.Config(app, http=http, **(usual | settings)))


def connections_possible() -> int:
    """Raise the limit of open files, and return how many connections the limit allows."""
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
    """Return uvicorn's HTTP protocol class, extended by a timeout for headers.

    A new connection beyond ``most_connections`` closes the connection that has waited longest for
    its headers. If all connections have complete headers, the new connection is closed instead.
    """
    import h11  # pyright: ignore[reportMissingImports]
    from uvicorn.protocols.http.h11_impl import (  # pyright: ignore[reportMissingImports]
        H11Protocol,
    )

    class TimedProtocol(H11Protocol):
        # Connections whose request headers are incomplete, oldest first.
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
                # If part of the next request has arrived, the time for its headers starts now.
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
