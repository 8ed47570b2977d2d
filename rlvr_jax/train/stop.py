"""Stopping on request: SIGTERM and Ctrl-C are noted, and the loop ends at the next safe place."""

import signal
from types import FrameType

STOPPED = 143
"""Exit status of a run that was asked to stop and can be resumed: 128 + SIGTERM."""


class StopRequest:
    """`with StopRequest() as stop:` and then look at `stop.asked`. A second signal is not caught."""

    def __init__(self) -> None:
        self.asked = False
        self._before: dict[int, object] = {}

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
