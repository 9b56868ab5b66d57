/** Escapes from the sandbox that once worked. */
import { spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readdirSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { setTimeout as sleep } from "node:timers/promises";
import { describe, expect, test } from "vitest";
import { ownerMark } from "../../base/files.ts";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { best, countSleepers, runPython, sandboxes } from "./levels.fixture.ts";
import { giveUpCgroups } from "./limits.ts";
import { launchCommand, launchPlan, removeLeftovers } from "./run-program.ts";
import type { Sandbox, SandboxLimits } from "./types.ts";
import { findInterpreter } from "./types.ts";

const sleepers = () => countSleepers(81357);
const ownFolders = () => readdirSync(tmpdir()).filter((name) => name.startsWith(`hone-sandbox-${ownerMark}`));
const python = (sandbox: Sandbox, code: string, limits: Partial<SandboxLimits> = {}) =>
  runPython(sandbox, code, { limits });

const libc = "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n";
const linux = test.runIf(process.platform === "linux");
const memory = { memoryBytes: 128 * 2 ** 20 };

/** Ways to hide from a count of the files below a path. Each writes 100 MB if it can. */
const hidden = {
  "below PATH_MAX": "for _ in range(24): os.mkdir('d' * 200); os.chdir('d' * 200)\nfill(lambda i, f: f.close())",
  "behind a name that is not UTF-8": "os.mkdir(b'\\xff')\nos.chdir(b'\\xff')\nfill(lambda i, f: f.close())",
  "unlinked and open": "fill(lambda i, f: (os.unlink(f.name), held.append(f)))",
  "unlinked and mapped":
    "fill(lambda i, f: (held.append(mmap.mmap(f.fileno(), 4096, mmap.MAP_SHARED)), os.unlink(f.name), f.close()))",
  "unlinked and in a socket's buffer": `held = [socket.socketpair() for _ in range(5)]
fill(lambda i, f: (socket.send_fds(held[i % 5][0], [b'x'], [f.fileno()]), os.unlink(f.name), f.close()))`,
};
const fill = `import mmap, os, socket, time
held = []
def fill(use):
  for i in range(100):
    f = open(f'{i}', 'w+b'); f.write(bytes(1_000_000)); f.flush(); use(i, f)
`;

describe.each(sandboxes)("level %s", (level, sandbox) => {
  test("descriptors that this process inherited do not reach a program", async () => {
    const folder = mkdtempSync(join(tmpdir(), "hone-inherited-"));
    for (const name of ["root", "files"]) mkdirSync(join(folder, name));
    const inherited = [openSync(join(folder, "lock"), "a"), openSync("/", "r")];
    const interpreter = await findInterpreter("python");
    const look = "import os\nfor n in range(3, 256):\n  try: print(n, os.fstat(n))\n  except OSError: pass";
    const limits = {
      cpuSeconds: 9,
      seconds: 9,
      processes: 9,
      fileBytes: 2 ** 20,
      outputBytes: 2 ** 20,
      memoryBytes: 2 ** 28,
    };
    const command = [interpreter.program, ...interpreter.args, "-c", look];
    const placed = { folder, command, interpreter, limits, cgroup: null, channel: false, marker: "inherited" };
    const [launcher, ...args] = launchCommand(interpreter, launchPlan(level, placed));
    const unused = Array(196).fill("ignore");
    const child = spawn(launcher, args, { stdio: ["ignore", "pipe", "pipe", "pipe", ...unused, ...inherited] });
    expect(await Promise.all([1, 2].map((stream) => text(child.stdio[stream] as Readable)))).toEqual(["", ""]);
    for (const descriptor of inherited) closeSync(descriptor);
    removeFolder(folder);
  });

  linux.each(Object.entries(hidden))("files %s count", async (_where, code) => {
    const limits = { fileBytes: 20_000_000, seconds: 20 };
    const { ended, stderr } = await python(sandbox, `${fill}${code}\ntime.sleep(20)`, limits);
    expect(`${ended} ${stderr}`).toMatch(/^files|No space left/);
    expect(ownFolders()).toEqual([]);
  });

  linux("a Unix socket of this machine, such as Docker's, cannot be reached", async () => {
    const folder = mkdtempSync(join(tmpdir(), "hone-socket-"));
    const path = join(folder, "socket");
    const server = createServer((socket) => socket.end("reached")).listen(path);
    const code = `import socket
def datagram(): return socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0]
for make in (socket.socket, datagram):
  try:
    s = make() if make is datagram else make(socket.AF_UNIX)
    s.connect(${JSON.stringify(path)}); print("reached")
  except FileNotFoundError: print("hidden")
  except OSError as error: print("refused", error.errno)`;
    const { stdout } = await python(sandbox, code);
    expect(stdout).toBe(level === "namespaces" ? "hidden\nhidden\n" : "refused 97\nrefused 1\n");
    server.close();
    removeFolder(folder);
  });

  linux("memory that belongs to no process, namespaces, mounts and ways past the filter are refused", async () => {
    const calls = {
      memfd_create: "libc.memfd_create(b'x', 0)",
      shmget: "libc.shmget(0, 1 << 30, 0o1600)",
      "unshare of a user and a mount namespace": "libc.unshare(0x10020000)",
      "clone into a user namespace": `libc.syscall(${process.arch === "x64" ? 56 : 220}, 0x10000011, 0, 0, 0, 0)`,
      "clone3, whose flags a filter cannot read": "libc.syscall(435, None, 0)",
      setns: "libc.setns(0, 0)",
      "a tmpfs": "libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, None)",
      "io_uring, which goes around the filter": "libc.syscall(425, 1, None)",
      ptrace: "libc.ptrace(0, 0, None, None)",
      "a call of the x32 interface": "libc.syscall(0x40000000 + 39)",
      "anonymous shared memory": "mapped(-1)",
      "shared mappings of /dev/zero": "mapped(os.open('/dev/zero', os.O_RDWR))",
      ...(level === "process" && {
        "hiding from the launcher": "libc.prctl(4, 0, 0, 0, 0)",
        "space that the kernel does not count as written":
          "libc.fallocate(os.open('x', os.O_CREAT | os.O_RDWR), 0, 0, 9)",
      }),
    };
    const mapped =
      "import mmap, json\ndef mapped(fd): return mmap.mmap(fd, 1 << 27)\nfound = {}\n" +
      "def attempt(name, call):\n  try: found[name] = int(call() == -1)\n  except OSError: found[name] = 1\n  except BaseException as e: found[name] = str(e)\n";
    const attempts = Object.entries(calls).map(([name, call]) => `attempt(${JSON.stringify(name)}, lambda: ${call})`);
    const { stdout } = await python(
      sandbox,
      `${libc}${mapped}${attempts.join("\n")}\nprint(json.dumps(found))`,
      memory,
    );
    expect(JSON.parse(stdout)).toEqual(Object.fromEntries(Object.keys(calls).map((name) => [name, 1])));
  });

  test.runIf(process.platform === "linux" && process.arch === "x64")(
    "a 32-bit system call ends the program",
    async () => {
      const code = "b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3'";
      const map = `mmap.mmap(-1, 4096, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, 7)`;
      const call = "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()";
      const { exitCode, stdout } = await python(
        sandbox,
        `import ctypes, mmap\nm = ${map}\nm.write(${code})\nprint(${call})`,
      );
      expect([exitCode, stdout]).toEqual([null, ""]);
    },
  );

  linux("AF_VSOCK and every other socket family but Unix is refused", async () => {
    const code = `import socket
for family in range(1, 46):
  for kind in (1, 2, 3, 5):
    for make in (socket.socket, socket.socketpair):
      try: make(family, kind); print(family)
      except OSError: pass`;
    const { stdout } = await python(sandbox, code);
    expect([...new Set(stdout.trim().split("\n"))]).toEqual(["1"]);
  });

  linux("a program that exceeds the kernel's memory limit ends with `memory`", async () => {
    const code =
      "import os, time\nfor i in range(8):\n  if os.fork() == 0: x = bytearray(40_000_000); time.sleep(9)\ntime.sleep(9)";
    const { ended, seconds } = await python(sandbox, code, memory);
    expect(ended).toBe("memory");
    expect(seconds).toBeLessThan(8);
  });

  test("a double-forked child that keeps stdout open does not delay the run", async () => {
    const code =
      "import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n    os.execve('/bin/sleep', ['sleep', '81357'], {})\n  os._exit(0)\nos.wait()\nprint('done')";
    const { stdout, ended, seconds } = await python(sandbox, code, { seconds: 20 });
    expect([stdout, ended]).toEqual(["done\n", "exit"]);
    expect(seconds).toBeLessThan(10);
    if (sandbox.isolation.lifetime) expect(sleepers()).toBe(0);
  });

  test.runIf(sandbox.isolation.secrets)(
    "/proc does not show the variables of this process, nor its memory",
    async () => {
      process.env.HONE_TEST_SECRET = "secret";
      const code = `import os
for pid in (os.getppid(), ${process.pid}, 1):
  for name in ("environ", "mem", "maps"):
    try: open(f"/proc/{pid}/{name}", "rb").read(9); print(pid, name)
    except OSError: pass`;
      expect((await python(sandbox, code)).stdout).toBe("");
    },
  );

  test.runIf(process.platform === "linux" && level === "process")(
    "a program cannot signal, limit or slow down the process that started it",
    async () => {
      const code = `import os, signal, resource, fcntl
for target in (${process.pid}, os.getppid()):
  for attempt in (
    lambda: os.kill(target, 9),
    lambda: os.kill(-target, 9),
    lambda: os.kill(-1, 9),
    lambda: resource.prlimit(target, resource.RLIMIT_CPU, (0, 0)),
    lambda: fcntl.fcntl(0, fcntl.F_SETOWN, target),
    lambda: os.setpriority(os.PRIO_PROCESS, target, 19),
    lambda: os.setpriority(os.PRIO_USER, 0, os.getpriority(os.PRIO_PROCESS, 0)),
    lambda: os.sched_setaffinity(target, {0}),
  ):
    try: attempt(); print("done")
    except PermissionError: print("refused")`;
      const { stdout, exitCode } = await python(sandbox, code);
      expect([exitCode, stdout]).toEqual([0, "refused\n".repeat(16)]);
    },
  );

  test("too many files end a program, and closed folders and nested ones below PATH_MAX are removed", async () => {
    const many = "import time\nfor i in range(40): open(f'{i}', 'wb').write(bytes(1_000_000))\ntime.sleep(20)";
    const { ended, stderr } = await python(sandbox, many, { fileBytes: 20_000_000, seconds: 20 });
    expect(`${ended} ${stderr}`).toMatch(/files|No space left/);
    const closed = "import os\nos.mkdir('a')\nos.mkdir('a/b')\nos.chmod('a', 0)";
    const deep =
      "\nfor _ in range(1200): os.mkdir('deep'); os.chdir('deep'); os.symlink('/', 'link')\nos.chmod('..', 0)";
    expect((await python(sandbox, closed + deep)).stderr).toBe("");
    expect(ownFolders()).toEqual([]);
  });

  test.runIf(sandbox.isolation.lifetime)(
    "leftovers of a killed process are removed: processes at once, folders at the next start",
    async () => {
      const module = new URL("./sandbox.ts", import.meta.url).href;
      const code = `const { openSandbox } = await import(${JSON.stringify(module)});
      const sandbox = await openSandbox({ only: "${level}" });
      const running = sandbox.run({ command: ["sh", "-c", "sleep 81357 & sleep 81357"] });
      setTimeout(() => console.log("running"), 1000);
      await running;`;
      const child = spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code]);
      for await (const text of child.stdout.setEncoding("utf8")) if (String(text).includes("running")) break;
      expect(sleepers()).toBeGreaterThan(0);
      child.kill("SIGKILL");
      for (let look = 0; look < 100 && sleepers() > 0; look++) await sleep(50);
      expect(sleepers()).toBe(0);
      const left = () =>
        readdirSync(tmpdir()).filter((name) => name.startsWith("hone-sandbox-") && name.includes(`@${child.pid}@`));
      expect(left()).toHaveLength(1);
      const running = sandbox.run({ command: ["sleep", "0.5"] });
      await sleep(100);
      await removeLeftovers();
      expect(left()).toEqual([]);
      expect((await running).exitCode, "a sandbox in use is left alone").toBe(0);
    },
  );
});

test.runIf(best.isolation.memory === "cgroup")(
  "without cgroups, memory is limited by watching the processes",
  async () => {
    const folder = "/sys/fs/cgroup";
    expect(existsSync(folder)).toBe(true);
    giveUpCgroups();
    const code =
      "import os, time\nfor i in range(8):\n  if os.fork() == 0: x = bytearray(40_000_000); time.sleep(9)\ntime.sleep(9)";
    expect((await python(best, code, memory)).ended).toBe("memory");
  },
);
