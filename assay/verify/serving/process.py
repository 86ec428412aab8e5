"""A worker process that judges completions, as seen by the process that started it."""

from __future__ import annotations

from typing import Any

from assay.host.worker_process import WorkerProcess


class Worker(WorkerProcess):
    """A process that runs `assay.verify.serving.worker`. family: see `WorkerProcess`."""

    def __init__(self, family: str) -> None:
        super().__init__("assay.verify.serving.worker", family)

    def greet(self, options: dict[str, Any]) -> None:
        """Wait until a new worker is ready, and send the options to the worker. Raises Lost."""
        is_new = not self.ready
        self.await_start()
        if is_new and options:
            self.send(0, "options", options)
