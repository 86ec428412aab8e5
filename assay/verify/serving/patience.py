"""When a reward is given up: it has judged none of its first completions."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable

from assay.errors import VerifierError
from assay.types import Verdict


class Patience:
    """Ends once a reward has failed on its first completions, and no longer when it has judged one.

    most: completions that it may fail on; None: any number. Errors and deadlines are failures; what
    is unavailable, or what a verifier says None of, is not. Safe from any thread.
    """

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._words: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Take in verdicts; raises VerifierError, in the verifier's own words, where patience ends."""
        with self._lock:
            for verdict in verdicts if self._most is not None else ():
                if verdict.judged:
                    self._most = None
                    return
                self._words[verdict.detail] += verdict.reason in ("error", "timeout")
                if self._words.total() == self._most:
                    raise VerifierError(self._complaint(verdict.verifier))

    def _complaint(self, verifier: str) -> str:
        ((words, times),) = self._words.most_common(1)
        often = "" if times == self._most else f", {times} times with"
        return (
            f"verifier {verifier}: it failed on each of the first {self._most} completions{often}: "
            f"{words}; mend it, then start again"
        )
