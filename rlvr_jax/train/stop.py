"""Stopping on request: SIGTERM and Ctrl-C are noted, and the loop ends at the next safe place."""

import signal
from types import FrameType

from rlvr_jax.distributed import agreed

STOPPED = 143
"""Exit status of a run that was asked to stop and can be resumed: 128 + SIGTERM."""


class StopRequest:
    """`with StopRequest() as stop:` and then ask `stop.agreed()`. A second signal is not caught.

    Of several processes one is enough: all of them stop where they ask next.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

    def agreed(self) -> bool:
        """Whether to stop. Every process has to ask at the same places of the program, and hears the same."""
        heard = agreed(self.asked)
        self.asked = self.asked or heard  # a signal may have come since
        return heard

    def __enter__(self) -> "StopRequest":
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()
