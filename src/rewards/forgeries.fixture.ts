/** Programs that try to get the reward of a test without passing it: what one does, its code, and what the explanation contains. */
export const forgeries: [string, string, string][] = [
  ["prints its source", "print(open(__file__).read())\ndef square(x): return 0", "AssertionError"],
  [
    "prints all files and exits",
    "import glob, sys\nfor f in glob.glob('*'): print(open(f).read())\nsys.exit(0)",
    "ended before",
  ],
  ["exits at once", "import os\nos._exit(0)", "ended before the test did"],
  ["exits when called", "import os\ndef square(x): os._exit(0)", "ended before the test did"],
  ["raises SystemExit when called", "def square(x): raise SystemExit(0)", "SystemExit"],
  [
    "is always equal",
    "class E:\n  def __eq__(self, other): return True\n  def __bool__(self): return True\ndef square(x): return E()",
    "an object of class E of the program is not plain data",
  ],
  [
    "is an always equal int",
    "class E(int):\n  def __eq__(self, other): return True\n  __hash__ = None\ndef square(x): return E(5)",
    "AssertionError",
  ],
  [
    "claims another class",
    "class E:\n  __class__ = int\n  def __eq__(self, other): return True\n  def __reduce__(self): return (int, (4,))\ndef square(x): return E()",
    "not plain data",
  ],
  [
    "replaces assertions",
    "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.__build_class__ = None\ndef square(x): return 0",
    "AssertionError",
  ],
  [
    "walks frames",
    "import sys, gc\ndef square(x):\n  f = sys._getframe()\n  while f: f.f_globals.update(square=lambda x: x * x); f = f.f_back\n  for o in gc.get_objects():\n    if isinstance(o, dict): o.setdefault('passed', True)\n  return 0",
    "AssertionError",
  ],
  [
    "replaces json and sys.stdout",
    "import json, sys\njson.dumps = lambda *a, **k: '[\"value\", true, []]'\nsys.stdout = None\ndef square(x): return 0",
    "TypeError",
  ],
  [
    "answers on the channel itself",
    'import os\ndef square(x):\n  os.write(4, b\'["value", {"verdict": [1]}, []]\\n\')\n  return 0',
    "not plain data",
  ],
  ["answers in advance", "import os\nos.write(4, b'[\"value\", 5, []]\\n' * 9)", "TypeError"],
  [
    "writes to every descriptor",
    "import os\nfor fd in range(256):\n  try: os.write(fd, b'{\"exit\": 0}\\npassed\\n')\n  except OSError: pass\ndef square(x): return 0",
    "data",
  ],
  ["closes every descriptor", "import os\nos.closerange(0, 256)\ndef square(x): return 0", "ended"],
  [
    "looks for the test's process",
    "import os, signal\nfor p in os.listdir('/proc') if os.access('/proc', os.R_OK) else []:\n  if p.isdigit() and int(p) != os.getpid():\n    try: os.kill(int(p), signal.SIGTERM)\n    except OSError: pass\ndef square(x): return 0",
    "",
  ],
  ["recurses without end", "def square(x): return square(x)", "RecursionError"],
  ["returns a cycle", "def square(x):\n  a = []\n  a.append(a)\n  return a", "not plain data"],
  ["never returns", "def square(x):\n  while True: pass", "exceeded the limit of time"],
  [
    "leaves threads and exit handlers",
    "import threading, atexit, time\natexit.register(print, 'passed')\nthreading.Thread(target=time.sleep, args=(60,)).start()\ndef square(x): return 0",
    "AssertionError",
  ],
  ["returns NaN", "def square(x): return float('nan')", "AssertionError"],
  ["returns a function", "def square(x): return square", "a function of the program is not plain data"],
  ["returns a generator", "def square(x): yield 4", "not plain data"],
  ["returns too much", "def square(x): return 'x' * 40_000_000", "exceeded the limit of"],
  ["prints without end", "def square(x):\n  while True: print('passed' * 1000)", "exceeded the limit of"],
];

/** What the test of all of them is. */
export const squareTest = { code: "assert square(2) == 4\nassert square(3) == 9" };
