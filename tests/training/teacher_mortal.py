"""An actor with a teacher that says which process it is; actors import little beside it."""

from __future__ import annotations

import os

from assay.scale.teacher import TeacherActor


class MortalActor(TeacherActor):
    """Can be killed."""

    def process(self) -> int:
        """Return the number of its process."""
        return os.getpid()
