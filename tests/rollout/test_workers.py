"""Calls that loop, raise, die or are slow: each is an outcome, none stops the others, and no process is left."""

import asyncio
import collections
import concurrent.futures
import dataclasses
import itertools
import multiprocessing
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import threading
import time

import pytest
import tiny_task

from rlvr_jax.rollout.judge import Judge, judging, verdict
from rlvr_jax.rollout.workers import CLOSED, Done, Failed, TimedOut, Workers, then
from rlvr_jax.tasks import Reason, Task, Verdict

DEADLINE = 0.6
PATIENCE = 60.0
"""Seconds after which a test says that something hangs. Nothing here takes more than a few."""


@pytest.fixture(scope="module")
def workers():
    with Workers(2, DEADLINE) as made:
        yield made


def result(future):
    return future.result(timeout=PATIENCE)


def is_alive(pid):
    """Whether a process runs; one that nobody has waited for yet does not."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def assert_ends(*pids):
    until = time.monotonic() + PATIENCE
    while any(map(is_alive, pids)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_alive, pids))


def loop():
    while True:
        pass


def loop_in_c():
    """Holds the interpreter lock for ever: no thread and no signal handler of this process runs any more."""
    collections.deque(itertools.repeat(0), maxlen=0)


def loop_with_a_child(path):
    child = subprocess.Popen(["sleep", "1000"])
    pathlib.Path(path).write_text(f"{os.getpid()} {child.pid}")
    loop()


def die_of(number):
    os.kill(os.getpid(), number)


def generator():
    return (i for i in ())


class Unreadable:
    """Pickles, and raises when it is read."""

    def __reduce__(self):
        return int, ("no number",)


@pytest.mark.parametrize(
    "function, args, outcome",
    [
        (divmod, (7, 2), Done((3, 1))),
        (divmod, (7, 0), Failed("ZeroDivisionError: integer division or modulo by zero")),
        (sys.exit, (4,), Failed("SystemExit: 4")),
        (os._exit, (3,), Failed("the process died: it left with status 3")),
        (die_of, (signal.SIGSEGV,), Failed("the process died: signal 11 (SIGSEGV)")),
        (generator, (), Failed("TypeError: cannot pickle 'generator' object")),
        (
            id,
            (generator(),),
            Failed("cannot be sent to a process: TypeError: cannot pickle 'generator' object"),
        ),
        (id, (Unreadable(),), Failed("ValueError: invalid literal for int() with base 10: 'no number'")),
        (
            Unreadable,
            (),
            Failed(
                "the value cannot be read: ValueError: invalid literal for int() with base 10: 'no number'"
            ),
        ),
        (loop, (), TimedOut(DEADLINE)),
        (loop_in_c, (), TimedOut(DEADLINE)),
    ],
)
def test_what_a_call_does_is_its_outcome_and_the_next_is_unharmed(workers, function, args, outcome):
    assert result(workers.submit(function, *args)) == outcome
    assert [result(workers.submit(abs, -i)) for i in range(4)] == [Done(i) for i in range(4)]


def test_values_larger_than_a_pipe_holds_come_through(workers):
    text = "x" * 3_000_000
    assert result(workers.submit(str.upper, text)) == Done("X" * 3_000_000)


def take(megabytes):
    return len(bytearray(megabytes << 20))


def take_ever_more():
    kept = []
    while True:
        kept.append(bytearray(1 << 24))


def test_memory_without_bound_costs_the_call_and_no_other():
    with Workers(1, PATIENCE, memory=1 << 30) as workers:
        for wanted in (lambda: take_ever_more(), lambda: take(1 << 12)):
            assert result(workers.submit(wanted)) == Failed("MemoryError")
        assert result(workers.submit(take, 100)) == Done(100 << 20)


def shout():
    """Most of a gigabyte on both outputs, by Python and past it."""
    line = b"x" * (1 << 20)
    for _ in range(300):
        print(line)
        sys.stderr.write("x" * (1 << 20))
        os.write(1, line)
    return "done"


def test_what_a_call_prints_goes_nowhere(capfd):
    with Workers(1, PATIENCE) as workers:
        assert result(workers.submit(shout)) == Done("done")
    assert capfd.readouterr() == ("", "")


def test_functions_of_no_module_are_sent_by_value(workers):
    shift = 3
    assert result(workers.submit(lambda x: x + shift, 4)) == Done(7)


def test_over_the_deadline_the_process_is_killed_and_what_it_started(workers, tmp_path):
    assert result(workers.submit(loop_with_a_child, tmp_path / "pids")) == TimedOut(DEADLINE)
    assert_ends(*(tmp_path / "pids").read_text().split())


def test_one_endless_call_of_64_does_not_stop_the_others(workers):
    assert [result(f) for f in [workers.submit(time.sleep, 0.1) for _ in range(2)]] == [
        Done(None)
    ] * 2  # both are up
    start = time.monotonic()
    done = []
    slow, *quick = [workers.submit(loop), *(workers.submit(divmod, i, 7) for i in range(63))]
    for future in (slow, *quick):
        future.add_done_callback(done.append)
    assert [result(f) for f in quick] == [Done(divmod(i, 7)) for i in range(63)]
    assert result(slow) == TimedOut(DEADLINE)
    assert done[0] is not slow
    # A deadline, and what two busy cores may add. One after the other, 64 deadlines would be over a minute.
    assert time.monotonic() - start < 20 * DEADLINE


def test_the_deadline_begins_with_the_call_not_in_the_queue(workers):
    start = time.monotonic()
    assert [result(f) for f in [workers.submit(time.sleep, 0.25) for _ in range(6)]] == [Done(None)] * 6
    assert time.monotonic() - start > DEADLINE  # so the last were done after waiting, together, for longer


class Loads:
    """Loads for longer than a call may take, once in a process."""

    loaded = 0

    def prepare(self):
        if not Loads.loaded:
            time.sleep(DEADLINE + 0.2)
            Loads.loaded += 1

    def __call__(self):
        return Loads.loaded

    def method(self):
        return Loads.loaded


@pytest.mark.parametrize("call", [Loads(), Loads().method])
def test_preparing_is_not_counted(workers, call):
    assert [result(f) for f in [workers.submit(call) for _ in range(3)]] == [Done(1)] * 3


class Stuck(Loads):
    def prepare(self):
        loop()


def test_preparing_that_does_not_end_is_ended_too():
    with Workers(1, DEADLINE, preparation=0.8) as few:  # which is also the time to start Python
        assert isinstance(result(few.submit(Stuck())), Failed)
        assert result(few.submit(Stuck())) == Failed("the process was not ready for the call within 0.8 s")


class Dies(Loads):
    def prepare(self):
        os._exit(5)


def test_preparing_that_kills_the_process_is_tried_twice_and_fails(workers):
    assert result(workers.submit(Dies())) == Failed("the process died: it left with status 5")
    assert result(workers.submit(abs, -1)) == Done(1)


def test_a_process_that_died_with_nothing_to_do_costs_no_call(workers):
    pids = {result(f).value for f in [workers.submit(os.getpid) for _ in range(32)]}
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert_ends(*pids)
    later = [result(f) for f in [workers.submit(os.getpid) for _ in range(32)]]
    assert all(isinstance(outcome, Done) for outcome in later)
    assert not pids & {outcome.value for outcome in later}


def test_a_cancelled_call_is_passed_over(workers):
    busy = [workers.submit(time.sleep, 0.2) for _ in range(2)]
    waiting, last = workers.submit(abs, -1), workers.submit(abs, -2)
    assert waiting.cancel()
    assert result(last) == Done(2)
    assert [result(f) for f in busy] == [Done(None)] * 2


def test_children_do_not_import_jax_and_could_only_use_the_cpu(workers):
    assert result(workers.submit(lambda: {"jax", "torch", "transformers"} & set(sys.modules))) == Done(set())
    assert result(workers.submit(os.getenv, "JAX_PLATFORMS")) == Done("cpu")


def test_an_interrupt_leaves_no_process_and_no_call_undone(tmp_path):
    with pytest.raises(KeyboardInterrupt), Workers(1, 100.0) as few:
        pid = result(few.submit(os.getpid)).value
        running, waiting = few.submit(loop_with_a_child, tmp_path / "pids"), few.submit(abs, -1)
        while not (tmp_path / "pids").exists() or " " not in (tmp_path / "pids").read_text():
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert_ends(pid, *(tmp_path / "pids").read_text().split())
    assert [result(running), result(waiting)] == [Failed(CLOSED)] * 2
    few.close()
    with pytest.raises(RuntimeError) as error:
        few.submit(abs, -1)
    assert str(error.value) == "these workers are closed; submit calls inside their `with` block."


SCRIPT = """
import dataclasses, sys
from rlvr_jax.rollout.judge import Judge
from rlvr_jax.rollout.workers import Workers
from rlvr_jax.tasks.base import Reason, Task, Verdict

@dataclasses.dataclass(frozen=True)
class Mine(Task):
    def records(self, split): return []
    def prompt(self, record): return ""
    def verify(self, record, completion): return Verdict.of(Reason.CORRECT if completion == "a" else Reason.WRONG)

print("this script runs")
workers = Workers(1, 30.0)
judge = Judge(Mine(), workers, batch_deadline=60.0)
print(*(judge.submit({}, text).result().reason for text in "ab"))
print(workers.submit(lambda: __import__("os").getpid()).result().value, flush=True)
if sys.argv[1:]:
    sys.stdin.read()
"""


def test_a_script_without_a_guard_runs_once_and_its_own_task_is_known(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    said, verdicts, pid = run.stdout.splitlines()
    assert (said, verdicts, run.stderr) == ("this script runs", "correct wrong", "")
    assert not is_alive(pid)  # though the script did not close its workers


def test_a_killed_parent_leaves_no_process(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    start = [sys.executable, tmp_path / "script.py", "wait"]
    with subprocess.Popen(start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout and parent.stdin
        pid = [parent.stdout.readline() for _ in range(3)][-1].strip()
        assert is_alive(pid)
        parent.kill()
    assert_ends(pid)


def test_a_call_whose_parent_was_killed_ends_itself_even_in_c():
    """The child's side alone, with a short patience: nobody here kills it."""
    ours, theirs = multiprocessing.Pipe()
    start = f"import rlvr_jax.rollout.workers as w; w.ORPHAN_SECONDS = 0.2; w.serve({theirs.fileno()}, 100.0, 0.1)"
    child = subprocess.Popen([sys.executable, "-c", start], pass_fds=(theirs.fileno(),))
    with ours, theirs:
        loop_there = "__import__('collections').deque(__import__('itertools').repeat(0), maxlen=0)"
        ours.send((None, None, pickle.dumps((eval, (loop_there,)))))
        assert child.wait(timeout=PATIENCE) == 1


@dataclasses.dataclass(frozen=True)
class Moody(Task):
    """Verifies as it is told to."""

    loaded = []
    seed: int = 0

    def records(self, split):
        return []

    def prompt(self, record):
        return ""

    def __setstate__(self, state):
        self.__dict__.update(state)
        Moody.loaded.append(self)

    def verify(self, record, completion):
        if completion == "loop":
            loop()
        if completion == "die":
            os._exit(0)
        if completion == "nothing":
            return None
        if completion == "count":
            return Verdict(float(len(Moody.loaded)), False, Reason.WRONG)
        return Verdict.of(Reason.CORRECT if int(completion) == record["answer"] else Reason.WRONG)


EXPECTED = {
    "loop": Reason.TIMEOUT,
    "die": Reason.ERROR,
    "nothing": Reason.ERROR,
    "no number": Reason.ERROR,
    "7": Reason.CORRECT,
    "8": Reason.WRONG,
}


def judged(workers, answers, record=None):
    judge = Judge(Moody(), workers, batch_deadline=60.0)
    return [judge.submit(record or {"answer": 7}, text) for text in answers]


def test_wrong_late_and_broken_are_kept_apart(workers):
    assert [result(f) for f in judged(workers, EXPECTED)] == [Verdict.of(r) for r in EXPECTED.values()]


def test_after_a_batch_of_endless_verifiers_the_next_is_scored_in_time(workers):
    start = time.monotonic()
    late = judged(workers, ["loop"] * 2)
    scores = [result(f).reward for f in judged(workers, ["7", "8"] * 8)]
    assert scores == [1.0, 0.0] * 8
    assert [result(f) for f in late] == [Verdict.of(Reason.TIMEOUT)] * 2
    assert time.monotonic() - start < 20 * DEADLINE


def test_the_task_travels_once_to_each_process(workers):
    judge = Judge(Moody(), workers, batch_deadline=60.0)
    counts = [result(judge.submit({}, "count")).reward for _ in range(40)]
    # Judges of earlier tests sent theirs; what a process has loaded does not grow with the calls.
    assert len(set(counts)) <= 2 and min(counts) >= 1


ANSWERS = ["7", "8", "x", "nothing", ""] * 4


def test_the_score_does_not_depend_on_who_asks_and_where(workers):
    with Workers(0, DEADLINE) as inline:
        expected = [result(f) for f in judged(inline, ANSWERS)]
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            in_a_thread = threads.submit(lambda: [result(f) for f in judged(inline, ANSWERS)]).result()
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        from_a_thread = threads.submit(lambda: [result(f) for f in judged(workers, ANSWERS)]).result()

    async def ask():
        return await asyncio.gather(*(asyncio.wrap_future(f) for f in judged(workers, ANSWERS)))

    from_a_loop = asyncio.run(ask())
    from_here = [result(f) for f in judged(workers, ANSWERS)]
    assert [v.reason for v in expected[:4]] == [Reason.CORRECT, Reason.WRONG, Reason.ERROR, Reason.ERROR]
    assert expected == in_a_thread == from_a_thread == from_a_loop == from_here


def test_without_processes_calls_are_made_at_once_by_who_submits_them():
    with Workers(0, DEADLINE) as inline:
        assert inline.submit(threading.get_ident).result(timeout=0) == Done(threading.get_ident())
        assert inline.submit(divmod, 1, 0).result(timeout=0) == Failed(
            "ZeroDivisionError: integer division or modulo by zero"
        )
        assert inline.submit(inline.install(abs), -2).result(timeout=0) == Done(2)
    with pytest.raises(RuntimeError, match="these workers are closed"):
        inline.submit(abs, 1)


def test_a_following_future_has_the_result_and_is_cancelled_with_the_other():
    first = concurrent.futures.Future()
    second = then(first, verdict)
    first.set_result(TimedOut(1.0))
    assert second.result(timeout=0) == Verdict.of(Reason.TIMEOUT)
    for cancelled in (0, 1):
        pair = [concurrent.futures.Future()]
        pair.append(then(pair[0], verdict))
        assert pair[cancelled].cancel() and all(future.cancelled() for future in pair)


def test_a_batch_has_a_deadline_of_its_own():
    """Of ten answers that are never done with, one is begun and the others are not; the one judged before counts."""
    with judging(tiny_task.Stuck(), workers=1, deadline=60.0, batch_deadline=1.0) as judge:
        first = judge.submit({"number": 0}, "e")
        first.result(timeout=60)
        asked = [first, *(judge.submit({"number": 0}, "a") for _ in range(10))]
        start = time.monotonic()
        found = judge.verdicts(asked)
        assert time.monotonic() - start < 20  # with the answers' own deadline it would be 600
        assert [v.reason for v in found] == [Reason.CORRECT, *[Reason.TIMEOUT] * 10]
        assert [each.cancelled() for each in asked[2:]] == [True] * 9


@pytest.mark.parametrize(
    "fields, message",
    [
        ((-1, 1.0), "workers=-1: use 1 process or more, or 0 for calls without a deadline."),
        ((1, 0.0), "deadline=0.0: a call has a positive, finite number of seconds."),
        ((1, float("inf")), "deadline=inf: a call has a positive, finite number of seconds."),
        ((1, 1.0, -2.0), "preparation=-2.0: a call has a positive, finite number of seconds."),
    ],
)
def test_impossible_workers_are_refused(fields, message):
    with pytest.raises(ValueError) as error:
        Workers(*fields)
    assert str(error.value) == message


def test_a_task_that_cannot_be_sent_is_refused(workers):
    numbers = generator()
    with pytest.raises(ValueError, match="cannot pickle 'generator' object.*let it hold plain data only"):
        workers.install(lambda: next(numbers))
