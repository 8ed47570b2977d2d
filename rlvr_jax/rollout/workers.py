"""Calls in processes that can be killed: a verifier or a tool that never comes back costs its deadline, no more.

    with Workers(count=2, deadline=5.0) as workers:
        outcomes = [workers.submit(function, argument) for argument in arguments]  # the device decodes meanwhile
        values = [outcome.result() for outcome in outcomes]  # Done, TimedOut or Failed

Neither a thread nor a signal stops a library that loops in C, so calls run in processes of their own. Those are new
interpreters and not forks, for JAX's threads do not survive one; nor do they run the parent's script again, as
`multiprocessing` would: a script without `if __name__ == "__main__"` would train once more in each of them. Functions and
classes of such a script, or of a notebook, are sent by value. No sandbox: a call may do what this process may.
"""

import atexit
import contextlib
import dataclasses
import faulthandler
import itertools
import math
import multiprocessing
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias, runtime_checkable

import cloudpickle

STARTED = b""
"""What a child sends when it has loaded a call and the clock begins; an outcome is never empty."""
ORPHAN_SECONDS = 10.0
"""A call that its parent did not end so long after the deadline has no parent any more, and ends itself."""
CLOSED = "the workers were closed before the call was done"

_numbers = itertools.count()


@dataclasses.dataclass(frozen=True)
class Done:
    """A call's value."""

    value: Any


@dataclasses.dataclass(frozen=True)
class TimedOut:
    """A call that was ended after so many seconds."""

    seconds: float


@dataclasses.dataclass(frozen=True)
class Failed:
    """A call that raised ("ZeroDivisionError: division by zero"), that could not be sent, or whose process died."""

    message: str


class _NotBegun(Failed):
    """A call whose process died before it began."""


Outcome: TypeAlias = Done | TimedOut | Failed


@runtime_checkable
class Prepares(Protocol):
    """What has to load something before it can be called, such as an index.

    A child calls this before each call of the object or of a method of it, and the deadline begins afterwards: so it does
    its work once and keeps it.
    """

    def prepare(self) -> None: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Installed:
    """A function that each child is sent once, and not with each call: `Workers.install`."""

    number: int
    function: Callable[..., Any]
    pickled: bytes


@dataclasses.dataclass(frozen=True, eq=False)
class _Job:
    installed: Installed | None
    call: bytes
    """Pickled (function or None for the installed one, arguments)."""
    future: Future


class Workers:
    """`count` processes that make calls, each call with `deadline` seconds from its start in the process.

    Calls wait in one queue; a call over the deadline is ended by killing its process, with all that it started, and a
    new process takes its place. To load a call's module, and to prepare it (`Prepares`), a process has `preparation`
    seconds more. `count=0` makes each call at once, in the thread that submits it: no deadline is possible there.

    A process may take `memory` bytes (None: any number); a call that wants more has failed. What calls print goes nowhere.

    Closing does not wait: what is not done by then has failed.

    Raises: ValueError for a count below 0 and for times that are not positive and finite.
    """

    def __init__(self, count: int, deadline: float, preparation: float = 300.0, memory: int | None = None):
        if count < 0:
            raise ValueError(f"workers={count}: use 1 process or more, or 0 for calls without a deadline.")
        for name, seconds in (("deadline", deadline), ("preparation", preparation)):
            if not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError(f"{name}={seconds}: a call has a positive, finite number of seconds.")
        self.count, self.deadline, self._preparation, self._memory = count, deadline, preparation, memory
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._children: set[_Child] = set()
        self._threads = [threading.Thread(target=self._supervise, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()
        atexit.register(self.close)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def install(self, function: Callable[..., Any]) -> Installed:
        """The function, to be submitted in its place: one that holds much data travels once to each child.

        Raises: ValueError for a function that cannot be pickled.
        """
        try:
            return Installed(next(_numbers), function, cloudpickle.dumps(function))
        except Exception as error:
            raise ValueError(
                f"{function!r} cannot be sent to a process ({_text(error)}); let it hold plain data only."
            ) from error

    def submit(self, function: Callable[..., Any] | Installed, *args: Any) -> "Future[Outcome]":
        """A future whose result is an `Outcome`; it never raises on account of the call.

        Raises: RuntimeError after closing.
        """
        future: Future = Future()
        installed = function if isinstance(function, Installed) else None
        if self.count == 0:
            self._check_open()
            future.set_result(_outcome(installed.function if installed else function, args))
            return future
        try:
            call = cloudpickle.dumps((None if installed else function, args))
        except Exception as error:
            future.set_result(Failed(f"cannot be sent to a process: {_text(error)}"))
            return future
        with self._lock:
            self._check_open()
            self._jobs.put(_Job(installed, call, future))
        return future

    def close(self) -> None:
        """Kill all children, and let what is not done fail. Closing again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for child in self._children:
                child.kill()
        atexit.unregister(self.close)
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("these workers are closed; submit calls inside their `with` block.")

    def _supervise(self) -> None:
        """The life of one place: a child after the other, and the calls that they make."""
        child = self._start()
        while (job := self._jobs.get()) is not None:
            if not job.future.set_running_or_notify_cancel():
                continue
            outcome, child = self._make(job, child)
            if isinstance(outcome, _NotBegun):  # a process that died idle is no fault of this call
                outcome, child = self._make(job, child)
            if isinstance(outcome, Failed):
                outcome = Failed(CLOSED if self._closed else outcome.message)
            job.future.set_result(outcome)
        self._end(child)

    def _make(self, job: _Job, child: "_Child | Failed") -> "tuple[Outcome, _Child | Failed]":
        """The outcome of a call, and the child that makes the next."""
        child = self._start() if isinstance(child, Failed) else child
        if isinstance(child, Failed):
            return child, child
        outcome = child.make(job, self._preparation, self.deadline)
        if not child.spent:
            return outcome, child
        self._end(child)
        return outcome, self._start()

    def _start(self) -> "_Child | Failed":
        with self._lock:
            if self._closed:
                return Failed(CLOSED)
            try:
                child = _Child(self._preparation, self.deadline, self._memory)
            except OSError as error:
                return Failed(f"no process can be started: {_text(error)}")
            self._children.add(child)
            return child

    def _end(self, child: "_Child | Failed") -> None:
        if isinstance(child, _Child):
            with self._lock:
                self._children.discard(child)
                child.end()


class _Child:
    """One process, and this end of the pipe to it."""

    def __init__(self, preparation: float, deadline: float, memory: int | None):
        self._pipe, theirs = multiprocessing.Pipe()
        self._installed: set[int | None] = set()
        self.spent = False
        with theirs:
            serving = f"serve({theirs.fileno()}, {preparation}, {deadline}, {memory})"
            start = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; {serving}"
            # A session of its own: Ctrl-C in the terminal is for the parent, and what the child starts dies with it.
            self._process = subprocess.Popen(
                [sys.executable, "-c", start],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
                start_new_session=True,
            )

    def make(self, job: _Job, preparation: float, deadline: float) -> Outcome:
        """One call; any outcome after which the child is of no use sets `spent`."""
        died = _NotBegun
        number, pickled = (job.installed.number, job.installed.pickled) if job.installed else (None, None)
        try:
            self._pipe.send((number, None if number in self._installed else pickled, job.call))
            self._installed.add(number)
            if not self._pipe.poll(preparation):
                self.spent = True
                return Failed(f"the process was not ready for the call within {preparation:g} s")
            answer = self._pipe.recv_bytes()
            died = Failed
            if answer == STARTED:
                if not self._pipe.poll(deadline):
                    self.spent = True
                    return TimedOut(deadline)
                answer = self._pipe.recv_bytes()
        except (EOFError, OSError):
            self.spent = True
            self.kill()
            return died(f"the process died: {_cause(self._process.wait())}")
        try:
            return cloudpickle.loads(answer)
        except Exception as error:
            return Failed(f"the value cannot be read: {_text(error)}")

    def kill(self) -> None:
        """It and what it started."""
        if self._process.returncode is None:  # after that, its number may be another's
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def end(self) -> None:
        """Kill, wait until it is gone, and give back the pipe."""
        self.kill()
        self._process.wait()
        self._pipe.close()


def serve(descriptor: int, preparation: float, deadline: float, memory: int | None) -> None:
    """The life of a child: calls from the pipe, outcomes into it, until the parent is gone.

    A call that the parent does not end is ended by a thread of C, which needs no interpreter lock.
    """
    pipe = Connection(descriptor)
    installed: dict[int, Any] = {}
    if memory is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    with contextlib.suppress(EOFError, ConnectionError), open(os.devnull, "w") as nowhere:
        for output in (1, 2):  # only now, so that what keeps a child from starting is seen
            os.dup2(nowhere.fileno(), output)
        while True:
            number, pickled, call = pipe.recv()
            if pickled is not None:
                installed[number] = pickled
            faulthandler.dump_traceback_later(preparation + ORPHAN_SECONDS, exit=True, file=nowhere)
            outcome = _outcome(_load, (installed, number, call))
            if isinstance(outcome, Done):
                pipe.send_bytes(STARTED)
                faulthandler.dump_traceback_later(deadline + ORPHAN_SECONDS, exit=True, file=nowhere)
                outcome = _outcome(*outcome.value)
            faulthandler.cancel_dump_traceback_later()
            answer = _outcome(cloudpickle.dumps, (outcome,))
            pipe.send_bytes(answer.value if isinstance(answer, Done) else cloudpickle.dumps(answer))


def _load(installed: dict, number: int | None, call: bytes) -> tuple[Callable[..., Any], tuple]:
    """The function, prepared, and the arguments of a call."""
    function, args = cloudpickle.loads(call)
    if number is not None:
        if isinstance(installed[number], bytes):  # it has just come
            installed[number] = cloudpickle.loads(installed[number])
        function = installed[number]
    holder = getattr(function, "__self__", function)
    if isinstance(holder, Prepares):
        holder.prepare()
    return function, args


def _outcome(function: Any, args: tuple) -> Outcome:
    try:
        return Done(function(*args))
    except (Exception, SystemExit) as error:
        return Failed(_text(error))


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _cause(status: int) -> str:
    if status >= 0:
        return f"it left with status {status}"
    return f"signal {-status} ({signal.Signals(-status).name})"


def then(future: Future, function: Callable[[Any], Any]) -> Future:
    """A future of `function(result)`, made in the thread that has the result; `function` must not raise. Cancelling the one
    cancels the other."""
    after: Future = Future()

    def settle(done: Future) -> None:
        if done.cancelled():
            after.cancel()
        elif after.set_running_or_notify_cancel():
            after.set_result(function(done.result()))

    after.add_done_callback(lambda it: it.cancelled() and future.cancel())
    future.add_done_callback(settle)
    return after
