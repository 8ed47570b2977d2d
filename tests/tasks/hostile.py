"""Programs that try anything but solving their problem, and what tests of the sandbox share."""

import os
import pathlib
import shutil
import subprocess
import time

import pytest


def missing():
    """Why there can be no sandbox here, by bubblewrap's own word; "" where there can."""
    if shutil.which("bwrap") is None:
        return "needs the Debian package bubblewrap"
    tried = subprocess.run(["bwrap", "--unshare-net", "--ro-bind", "/", "/", "true"], capture_output=True)
    return "" if tried.returncode == 0 else f"bubblewrap does not work here: {tried.stderr.decode()}"


needs_bwrap = pytest.mark.skipif(bool(missing()), reason=missing())


def marked(word):
    """Processes that have the mark, by their command."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if word.encode() in (entry / "environ").read_bytes() and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_bytes())
        except OSError:
            continue
    return found


def nothing_stays(word, within=5.0):
    """The kernel takes a moment for the last of it."""
    end = time.monotonic() + within
    while (left := marked(word)) and time.monotonic() < end:
        time.sleep(0.02)
    return not left


PROGRAMS = {
    # -- leaving early
    "exits": "import sys\nsys.exit(0)",
    "exits when called": "import sys\ndef f(x): sys.exit(0)",
    "_exits": "import os\nos._exit(0)",
    "_exits when called": "import os\ndef f(x): os._exit(0)",
    "exits at exit": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)",
    "quits": "def f(x): quit()",
    "raises KeyboardInterrupt": "def f(x): raise KeyboardInterrupt",
    "raises StopIteration": "def f(x): raise StopIteration",
    "raises AssertionError": "def f(x): raise AssertionError",
    "kills itself": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGKILL)",
    "segfaults": "import ctypes\ndef f(x): return ctypes.string_at(1)",
    # -- equality
    "equals all": "class All:\n    def __eq__(self, other): return True\n    __hash__ = object.__hash__\ndef f(x): return All()",
    "int that equals all": "class All(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x): return All()",
    "list that equals all": "class All(list):\n    def __eq__(self, other): return True\ndef f(x): return All()",
    "compares to all": "class All(float):\n    __eq__ = __lt__ = __gt__ = lambda *_: True\n    __sub__ = __rsub__ = __abs__ = lambda *_: 0.0\ndef f(x): return All(1)",
    "nan": "def f(x): return float('nan')",
    "true": "def f(x): return True",
    # -- the judge's modules
    "patches builtins": "import builtins\nbuiltins.all = builtins.any = builtins.isinstance = lambda *_: True\n"
    "builtins.AssertionError = type('E', (BaseException,), {})\nbuiltins.abs = lambda _: 0\ndef f(x): return 0",
    "patches operator": "import operator, math\noperator.eq = math.isclose = lambda *_, **__: True\ndef f(x): return 0",
    "patches json": "import json\njson.dumps = lambda *_, **__: '{\"value\": 6}'\ndef f(x): return 0",
    "patches the encoder": "import sys\nmain = sys.modules['__main__']\nmain.encode = lambda _: {'any': 0}\ndef f(x): return 0",
    "patches the tests": "import sys\nfor m in list(sys.modules.values()):\n"
    "    for n in ('agree', 'tests', 'decode', 'Remote'):\n        setattr(m, n, lambda *_, **__: True)\ndef f(x): return 0",
    "import hook": "import sys\nclass Hook:\n    def find_spec(self, *_): raise SystemExit(0)\n"
    "sys.meta_path.insert(0, Hook())\ndef f(x):\n    import nothing\n    return 0",
    "frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
    "        for name in list(frame.f_globals):\n            if name in ('wanted', 'expected', 'verdict'): return frame.f_globals[name]\n"
    "        for name in frame.f_locals:\n            if name in ('wanted', 'expected', 'reply'): return frame.f_locals[name]\n"
    "        frame = frame.f_back\n    return 0",
    "collector": "import gc\ndef f(x):\n    for o in gc.get_objects():\n        if isinstance(o, dict) and 'PASSED' in o: o['FAILED'] = o['PASSED']\n    return 0",
    "tracing": "import sys, threading\ndef trace(*_): return trace\nsys.settrace(trace)\nthreading.settrace(trace)\ndef f(x): return 0",
    # -- descriptors and files
    "writes to all descriptors": "import os\nfor d in range(64):\n    for said in (b'p', b'rp', b'passed\\n'):\n"
    "        try: os.write(d, said)\n        except OSError: pass\ndef f(x): return 0",
    "answers before it is asked": "import os\nfor d in range(3, 64):\n    try: os.write(d, b'{\"value\": 0}\\n' * 9)\n    except OSError: pass\ndef f(x): return 0",
    "breaks the form": "import os\ndef f(x):\n    for d in range(3, 64):\n        try: os.write(d, b'[' * 99999 + b'\\n')\n        except OSError: pass\n    return 0",
    "closes all descriptors": "import os\nos.closerange(0, 64)\ndef f(x): return 0",
    "prints success": "print('passed')\nprint('p', flush=True)\ndef f(x):\n    print('OK\\nPASSED')\n    return 0",
    "reads the job": "import json\ndef f(x): return json.load(open('/job.json'))",
    "searches for the answer": "import os\ndef f(x):\n    for folder, _, files in os.walk('/'):\n        for file in files:\n"
    "            if file.endswith(('.jsonl', 'job.json')): return 2 * x\n    return 0",
    "writes files": "for place in ('/job.json', '/sandboxed.py', '/x', '/tmp/hostile', '/usr/lib/x'):\n"
    "    try: open(place, 'w').write('hostile')\n    except OSError: pass\ndef f(x): return 0",
    "reads stdin": "import sys\ndef f(x): return int(sys.stdin.read() or 0)",
    "environment": "import os\nos.environ['PYTHONPATH'] = '/tmp'\ndef f(x): return int(os.environ.get('EXPECTED', 0))",
    "runs itself again": "import os, sys\nif len(sys.argv) < 9: os.execv(sys.executable, [sys.executable, '-c', 'pass'])\ndef f(x): return 0",
    # -- other processes
    "signals": "import os, signal\nfor p in (1, 0, -1, os.getppid()):\n    try: os.kill(p, signal.SIGTERM if p > 0 else 0)\n    except OSError: pass\ndef f(x): return 0",
    "memory of others": "import glob\ndef f(x):\n    for p in glob.glob('/proc/*/mem'):\n        open(p, 'r+b').write(b'x')\n    return 0",
    "ptrace": "import ctypes\nc = ctypes.CDLL(None)\nfor p in range(1, 9): c.ptrace(16, p, 0, 0)\ndef f(x): return 0",
    "background": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(99)\ndef f(x): return 0",
    "background thread": "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()\ndef f(x): return 0",
    "clone by hand": "import ctypes\nc = ctypes.CDLL(None)\nfor _ in range(9):\n    c.syscall(56, 17, 0, 0, 0, 0)\n    c.syscall(57)\n    c.syscall(435, 0, 0)\ndef f(x): return 0",
    "network": "import urllib.request\ndef f(x): return int(urllib.request.urlopen('http://127.0.0.1:80', timeout=1).read())",
    # -- hogs
    "fork bomb": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "thread bomb": "import threading, time\nwhile True:\n    try: threading.Thread(target=time.sleep, args=(99,)).start()\n    except RuntimeError: pass",
    "memory": "def f(x): return [0] * 10**10",
    "memory, patiently": "x = []\nwhile True:\n    try: x.append(bytearray(10**6))\n    except MemoryError: pass",
    "endless output": "while True: print('x' * 10**6)",
    "endless value": "def f(x):\n    while True: yield x",
    "endless loop": "def f(x):\n    while True: pass",
    "sleep": "import time\ndef f(x): time.sleep(99)",
    "ignores signals": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(x): return f(x)",
    "deep value": "def f(x):\n    value = []\n    for _ in range(10**5): value = [value]\n    return value",
    "circular value": "def f(x):\n    value = []\n    value.append(value)\n    return value",
    "huge integer": "def f(x): return 9 ** 9 ** 9",
    "long integer": "def f(x): return 1 << 10**8",
    "long text": "def f(x): return 'x' * 10**8",
    "full disk": "i = 0\nwhile True:\n    try: open(f'/tmp/{i}', 'wb').write(bytes(10**6))\n    except OSError: pass\n    i += 1",
    "regular expression": "import re\ndef f(x): return re.match('(a+)+b', 'a' * 99)",
    "deep source": "f = " + "(" * 5000 + "0" + ")" * 5000,
    "no source": "def f(x:\n",
    "null byte": "def f(x): return 0\n\0",
}
"""Answers to a problem that asks for a function `f` which doubles a number. None of them does.

Each is forged, and wants to pass nevertheless, or a hog, and wants what the machine has, or both.
"""
