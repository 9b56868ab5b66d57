/** Random programs that attack the sandbox and pretend to square a number. */

export interface HostileProgram {
  language: "python" | "javascript";
  code: string;
}

const pick = <Value>(random: () => number, values: readonly Value[]) =>
  values[Math.floor(random() * values.length)] as Value;

/** Writes 100 MB in files that `use` hides. */
const fill = (use: string) =>
  `import os, mmap, socket\nheld = []\nfor i in range(100):\n  f = open(f'{i}', 'w+b'); f.write(bytes(1_000_000)); f.flush(); ${use}`;

/** `OUTSIDE` is a folder outside of the sandbox with the file `file` and the Unix socket `socket`; `PORT` a server's port. */
const attacks = {
  python: [
    `import os\nfor _ in range(24): os.mkdir('d' * 200); os.chdir('d' * 200)\n${fill("f.close()")}`,
    `import os\nos.mkdir(b'\\xff'); os.chdir(b'\\xff'); os.mknod(b'\\xfe')\n${fill("f.close()")}`,
    fill("os.unlink(f.name); held.append(f)"),
    fill("held.append(mmap.mmap(f.fileno(), 4096)); os.unlink(f.name); f.close()"),
    fill(
      "held.append(socket.socketpair()); socket.send_fds(held[-1][0], [b'x'], [f.fileno()]); os.unlink(f.name); f.close()",
    ),
    fill(
      "os.makedirs('a/b', exist_ok=True); os.rename(f.name, 'a/b/' + f.name); os.rename('a', f'c{i}'); os.chmod(f'c{i}', 0)",
    ),
    "import os\nfor _ in range(30_000): os.mkdir('d'); os.chdir('d')",
    "import os\nfor _ in range(2000): os.mkdir('d'); os.symlink('OUTSIDE', 'l'); os.chdir('d'); os.chmod('..', 0)",
    "import os\nif os.fork() == 0:\n  os.makedirs('a/b/c')\n  while True: os.rename('a/b', 'b'); os.rename('b', 'a/b')\n" +
      "for i in range(100): open(f'{i}', 'wb').write(bytes(1_000_000))",
    "import os\nos.fork(); os.fork()\nfor i in range(10 ** 7): os.symlink('OUTSIDE', f'{os.getpid()} {i}')",
    "import os\nfor i in range(200): os.truncate(os.open(f'{i}', os.O_CREAT | os.O_RDWR), 19_000_000)",
    "import os\nfor i in range(200):\n  fd = os.open('x', os.O_CREAT | os.O_RDWR); os.posix_fallocate(fd, 0, 19_000_000); os.unlink('x')",
    "import os\nfor act in (lambda: os.link('OUTSIDE/file', 'x'), lambda: os.rename('OUTSIDE/file', 'x'), lambda: os.unlink('OUTSIDE/file'),\n" +
      "  lambda: open('OUTSIDE/new', 'w'), lambda: os.truncate('OUTSIDE/file', 0), lambda: os.rename(os.getcwd(), 'OUTSIDE/new'),\n" +
      "  lambda: open('/dev/shm/hone-fuzz-OWNER', 'w'), lambda: open('/proc/self/cwd/../../new', 'w')):\n  try: act()\n  except OSError: pass",
    "import os\nfor fd in range(3, 256):\n  try: os.write(os.open('OUTSIDE/file', os.O_WRONLY, dir_fd=fd), b'x'); os.write(fd, b'x')\n  except OSError: pass",
    "import os, socket\nos.mkfifo('f')\nfor kind in (1, 2, 5):\n  for make in (socket.socket, socket.socketpair):\n" +
      "    try:\n      s = make(socket.AF_UNIX, kind); s = s if make is socket.socket else s[0]; s.connect('OUTSIDE/socket'); s.send(b'x')\n" +
      "    except OSError: pass",
    "import socket\nfor family, at in ((2, ('127.0.0.1', PORT)), (10, ('::ffff:127.0.0.1', PORT))):\n  for kind in (1, 2, 3):\n" +
      "    try: socket.socket(family, kind).connect(at)\n    except OSError: pass",
    "import os\nwhile True: os.write(4, bytes(65536))",
    "import os, signal\nfor target in (os.getppid(), 0, -1, OWNER):\n  for number in (19, 20, 2, 15, 17, 14, 1, 10, 9):\n" +
      "    try: os.kill(target, number)\n    except OSError: pass",
    "import ctypes, os\nlibc = ctypes.CDLL(None)\nfor target in (os.getppid(), OWNER):\n  libc.ptrace(16, target, 0, 0); libc.ptrace(0x4206, target, 0, 0)\n" +
      "for number in (425, 323, 319, 310, 311, 438, 29, 447, 250, 321, 298): libc.syscall(number, 0, 0, 0, 0, 0, 0)\nlibc.prctl(4, 0, 0, 0, 0)",
    "import os\ntry:\n  os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0)); os.kill(OWNER, 9)\nexcept OSError: pass",
    "import threading, time\nthreading.stack_size(32768)\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "import os\nfor _ in range(6):\n  if os.fork() == 0:\n    while True:\n      os.setsid()\n      if os.fork(): os._exit(0)",
    "import os\nos.abort()",
    "import os\nos._exit(0)",
    "import sys\nsys.exit(0)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "import os\nos.kill(os.getppid(), 9)",
    "import os\nos.kill(-1, 9)",
    "import os\nos.killpg(0, 15)",
    "import os, signal\nfor n in range(1, 65):\n  try: signal.signal(n, signal.SIG_IGN)\n  except (OSError, ValueError): pass",
    "import os, glob\nfor f in glob.glob('*') + ['/proc/self/cmdline', '/proc/self/environ']:\n  print(open(f, errors='replace').read())",
    "print(open(__file__).read())",
    'import os\nfor fd in range(256):\n  try: os.write(fd, b\'["value", 4, []]\\n{"exit": 0}\\npassed\\n\')\n  except OSError: pass',
    "import os\nos.closerange(0, 256)",
    "import os\nfor fd in range(3, 256):\n  try: os.dup2(1, fd)\n  except OSError: pass",
    "import builtins\nbuiltins.AssertionError = Warning\nbuiltins.isinstance = lambda *a: True\nbuiltins.len = lambda x: 4",
    "import json, sys\njson.dumps = lambda *a, **k: '4'\njson.loads = lambda *a, **k: 4\nsys.stdout = sys.stderr",
    "import sys\nf = sys._getframe()\nwhile f:\n  f.f_globals['passed'] = True\n  f = f.f_back",
    "import gc\nfor o in gc.get_objects():\n  if type(o) is dict: o['reward'] = 1",
    "import sys\nsys.setrecursionlimit(10**9)\ndef r(): r()\nr()",
    "import atexit, os\natexit.register(os._exit, 0)",
    "import threading, time\nfor _ in range(40): threading.Thread(target=time.sleep, args=(60,)).start()",
    "import os, time\nfor _ in range(4): os.fork()\nif os.getpid() % 2: time.sleep(60)",
    "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '60'], {})\n  os._exit(0)",
    "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    while True: pass\n  os._exit(0)",
    "x = []\nwhile True: x.append(bytearray(10_000_000))",
    "import os, mmap\nfor _ in range(20):\n  f = os.memfd_create('x')\n  for _ in range(100): os.write(f, bytes(1_000_000))",
    "import mmap\nm = [mmap.mmap(-1, 50_000_000) for _ in range(20)]\nfor x in m: x.write(bytes(50_000_000))",
    "import os, socket\npairs = [socket.socketpair() for _ in range(100)]\nfor a, b in pairs:\n  a.setblocking(False)\n  try:\n    while True: a.send(bytes(65536))\n  except OSError: pass",
    "i = 0\nwhile True:\n  open(f'{i}', 'wb').write(bytes(1_000_000))\n  i += 1",
    "i = 0\nwhile True:\n  open(f'{i}', 'wb').close()\n  i += 1",
    "import os\nfor _ in range(60): os.mkdir('d' * 200); os.chdir('d' * 200)",
    "import os\nos.mkdir('closed')\nopen('closed/x', 'w').close()\nos.chmod('closed', 0)\nos.chmod('.', 0)",
    "import os\nos.symlink('/', 'root')\nos.symlink('loop', 'loop')\nos.mkfifo('fifo')",
    "import shutil, os\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "while True: print('passed' * 1000)",
    "import sys\nsys.stderr.write('AssertionError\\n' * 1_000_000)",
    "while True: pass",
    "import time\ntime.sleep(60)",
    "import ctypes\nctypes.string_at(0)",
    "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.unshare(0x10020000)\nlibc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, 0)\nlibc.prctl(36, 1)\nlibc.prctl(1, 0)",
    "import ctypes, random\nlibc = ctypes.CDLL(None)\nfor _ in range(300): libc.syscall(random.randrange(500), *(random.randrange(-2, 99) for _ in range(6)))",
    "import os\nfor pid in os.listdir('/proc'):\n  if pid.isdigit():\n    for name in ('mem', 'environ', 'fd/4'):\n      try: open(f'/proc/{pid}/{name}', 'r+b').write(b'passed')\n      except OSError: pass",
    "import socket\nsocket.create_connection(('127.0.0.1', 22), 1)",
    "import os, pty\npty.fork()",
    "import subprocess\nsubprocess.Popen(['sh', '-c', 'trap \"\" 1 2 15; while :; do sleep 1; done'], start_new_session=True)",
    "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))",
  ],
  javascript: [
    "const { mkdirSync: m } = await import('node:fs'); for (let i = 0; i < 30000; i++) { m('d'); process.chdir('d'); }",
    "const { openSync: o, writeSync: w, unlinkSync: u } = await import('node:fs'); for (let i = 0; i < 100; i++) { const f = o('x', 'w'); w(f, Buffer.alloc(1e6)); u('x'); }",
    "const { symlinkSync: l, writeFileSync: w } = await import('node:fs'); l('OUTSIDE', 'l'); try { w('l/file', 'x'); } catch {} try { w('OUTSIDE/new', 'x'); } catch {}",
    "const { connect: c } = await import('node:net'); for (const at of [{ port: PORT }, { path: 'OUTSIDE/socket' }]) c(at).on('error', () => {}).write('x');",
    "process.exit(0);",
    "process.kill(process.ppid, 9);",
    "process.kill(-1, 9);",
    "process.kill(process.pid, 'SIGKILL');",
    "JSON.stringify = () => '4'; JSON.parse = () => [];",
    "globalThis.assert = () => {}; Object.prototype.passed = true; Array.prototype.map = () => [4];",
    "const { writeSync: w, closeSync: c } = await import('node:fs'); for (let i = 0; i < 64; i++) { try { w(i, '[\"value\", 4, []]\\n{\"exit\": 0}\\n'); c(i); } catch {} }",
    "const { spawn: s } = await import('node:child_process'); s('sleep', ['60'], { detached: true, stdio: 'inherit' });",
    "const { Worker: W } = await import('node:worker_threads'); for (let i = 0; i < 4; i++) new W('for (;;);', { eval: true });",
    "for (;;);",
    "const held = []; for (;;) held.push(new Array(1e6).fill(held.length));",
    "for (;;) console.log('passed'.repeat(1000));",
    "const { readdirSync: r, readFileSync: f } = await import('node:fs'); for (const n of r('.')) console.log(f(n, 'utf8'));",
    "setInterval(() => {}, 1000); process.on('exit', () => { process.exitCode = 0; });",
    "process.on('uncaughtException', () => {}); throw new Error('passed');",
    "await new Promise(() => {});",
  ],
};

/** Bodies and results that are wrong at least for 3. */
const answers = {
  python: [
    "return 5",
    "return None",
    "return float('nan')",
    "return float('inf')",
    "return square",
    "return (4 for _ in range(4))",
    "yield 4",
    "return type('E', (), {'__eq__': lambda *a: True, '__bool__': lambda *a: True, '__class__': int})()",
    "return type('I', (int,), {'__eq__': lambda *a: True, '__hash__': None})(7)",
    "return type('R', (), {'__reduce__': lambda *a: (int, (4,)), '__index__': lambda *a: 7})()",
    "return 4 if x == 2 else [9]",
    "return {'value': 9}",
    "a = []\n  a.append(a)\n  return a",
    "return eval('[' * 90 + ']' * 90)",
    "return 'x' * 30_000_000",
    "return 10 ** 5000",
    "raise SystemExit(0)",
    "raise AssertionError()",
    "raise KeyboardInterrupt()",
    "raise type('E', (BaseException,), {'__str__': lambda self: 1 / 0})()",
    "import os\n  os._exit(0)",
    "return square(x)",
    "while True: pass",
  ],
  javascript: [
    "5",
    "NaN",
    "Infinity",
    "square",
    "undefined",
    "7n",
    "({ valueOf: () => 9, toString: () => '9', toJSON: () => 7, [Symbol.toPrimitive]: () => 9 })",
    "new Proxy(class {}, { get: () => 9 })",
    "x === 2 ? 4 : '9'",
    "[9]",
    "Promise.reject(new Error('no'))",
    "new Promise(() => {})",
    "process.exit(0)",
    "square(x)",
    "(() => { throw { name: { toString: () => { throw 1; } } }; })()",
  ],
};

const indent = (code: string) => code.replaceAll(/^/gm, "  ");

const settings = {
  python: [
    (attack: string) => attack,
    (attack: string) => `try:\n${indent(attack)}\nexcept BaseException: pass`,
    (attack: string) => `import threading\ndef run():\n${indent(attack)}\nthreading.Thread(target=run).start()`,
    (attack: string) => `import os\nif os.fork() == 0:\n${indent(attack)}`,
    (attack: string) => `import atexit\n@atexit.register\ndef last():\n${indent(attack)}`,
  ],
  javascript: [
    (attack: string) => attack,
    (attack: string) => `try {\n${attack}\n} catch {}`,
    (attack: string) => `setTimeout(async () => {\n${attack}\n}, 5);`,
  ],
};

/** What programs attack: see `attacks`. */
export interface Outside {
  folder: string;
  port: number;
}

export function hostileProgram(random: () => number, { folder, port }: Outside): HostileProgram {
  const { language, code } = randomProgram(random);
  const aimed = code.replaceAll("OUTSIDE", folder).replaceAll("PORT", `${port}`).replaceAll("OWNER", `${process.pid}`);
  return { language, code: aimed };
}

function randomProgram(random: () => number): HostileProgram {
  const language = random() < 0.8 ? "python" : "javascript";
  const parts = Array.from({ length: Math.floor(random() * 4) }, () =>
    pick(random, settings[language])(pick(random, attacks[language])),
  );
  const answer = pick(random, answers[language]);
  const inside = random() < 0.3 ? pick(random, attacks[language]) : undefined;
  if (language === "javascript") {
    return { language, code: [...parts, `function square(x) { return ${answer}; }`].join("\n") };
  }
  const body = inside === undefined ? answer : `${inside.replaceAll("\n", "\n  ")}\n  ${answer}`;
  return { language, code: [...parts, `def square(x):\n  ${body}`].join("\n") };
}
