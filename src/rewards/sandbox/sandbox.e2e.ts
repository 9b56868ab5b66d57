import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { homedir, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { best, countSleepers, runPython, sandboxes } from "./levels.fixture.ts";
import { listProcesses } from "./limits.ts";
import type { Isolation, SandboxLimits } from "./types.ts";

const sleepers = () => countSleepers(91357);

describe.each(sandboxes)("level %s", (_level, sandbox) => {
  const { isolation } = sandbox;
  const claims = (claim: keyof Isolation) => test.runIf(isolation[claim] === true);

  test("a program reads its input and its files, and its output and exit code are returned", async () => {
    const code = "import sys\nprint(open('data/x.txt').read() + input())\nprint('bad', file=sys.stderr)\nsys.exit(3)";
    const files = { "main.py": code, "data/x.txt": "file " };
    const result = await sandbox.run({ command: ["python", "main.py"], files, stdin: "input\n" });
    expect(result).toMatchObject({ ended: "exit", exitCode: 3, stdout: "file input\n", stderr: "bad\n" });
  });

  test("node runs too, and no variable of this process reaches the program", async () => {
    process.env.HONE_TEST_SECRET = "secret";
    const { stdout } = await sandbox.run({ command: ["node", "-e", "console.log(JSON.stringify(process.env))"] });
    expect(stdout).toContain("PATH");
    expect(stdout).not.toContain("secret");
  });

  test.each<[string, string, Partial<SandboxLimits>, string]>([
    ["processor time", "while True: pass", { cpuSeconds: 1 }, "time"],
    ["waiting", "import time\ntime.sleep(60)", { seconds: 0.3 }, "time"],
    ["output", "while True: print('x' * 1000)", { outputBytes: 10_000 }, "output"],
  ])("too much %s ends the program", async (_what, code, limits, ended) => {
    expect(await runPython(sandbox, code, { limits })).toMatchObject({ ended, exitCode: null });
  });

  claims("resources")("a memory bomb ends, in one process and in many", async () => {
    const limits = { memoryBytes: 200 * 2 ** 20 };
    const one = await runPython(sandbox, "x = []\nwhile True: x.append(bytearray(10_000_000))", { limits });
    expect(one.stderr + one.ended).toMatch(/MemoryError|memory/);
    const code =
      "import os, time\nfor _ in range(9): os.fork() if os.getpid() == first else 0\n" +
      "x = bytearray(60_000_000)\ntime.sleep(30)";
    const many = await runPython(sandbox, `import os\nfirst = os.getpid()\n${code}`, { limits });
    expect(many.ended).toBe("memory");
  });

  // Faster than /proc can be read on a busy machine, so the kernel has to refuse new processes first.
  for (const [kind, child] of [
    ["a fork bomb", "pass"],
    ["a fork bomb of many process groups", "os.setsid()"],
  ]) {
    claims("resources")(`${kind} ends and leaves no process`, async () => {
      const bomb = `import os, time
while True:
  try:
    if os.fork() == 0: ${child}
  except OSError: time.sleep(0.01)`;
      const { ended } = await sandbox.run({
        // Programs of other tests run at the same time.
        command: ["python", "main.py", "fork-bomb"],
        files: { "main.py": bomb },
        limits: { seconds: 1, processes: 40 },
      });
      expect(["time", "processes", "memory"]).toContain(ended);
      await sleep(50);
      const left = listProcesses().filter(({ command }) => command.includes("main.py fork-bomb"));
      expect(left).toEqual([]);
    });
  }

  claims("resources")("a thread bomb ends", async () => {
    const start = "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()";
    const code = `import threading, time\nfor _ in range(400): ${start}\ntime.sleep(9)`;
    const { ended, stderr } = await runPython(sandbox, code, { limits: { processes: 40, memoryBytes: 2 ** 32 } });
    expect(`${ended} ${stderr}`).toMatch(/^processes|can't start new thread/);
  });

  test("a process that outlives its parent, or leaves its process group, is ended with the program", async () => {
    const code = [
      "import subprocess, os",
      "subprocess.Popen(['sleep', '91357'])",
      "subprocess.Popen(['sleep', '91357'], start_new_session=True)",
      "if os.fork() == 0:",
      "  os.setsid()",
      "  if os.fork() == 0: os.execvp('sleep', ['sleep', '91357'])",
      "  os._exit(0)",
      "os.wait()",
      "print('done', flush=True)",
    ].join("\n");
    const { stdout } = await runPython(sandbox, code);
    expect(stdout).toBe("done\n");
    await sleep(50);
    expect(sleepers()).toBe(0);
  });

  claims("processes")("a process that also clears its environment is ended too", async () => {
    const code =
      "import os\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: os.execve('/bin/sleep', ['sleep', '91357'], {})\n  os._exit(0)\nos.wait()";
    await runPython(sandbox, code);
    await sleep(50);
    expect(sleepers()).toBe(0);
  });

  claims("processes")("a program cannot see other processes or signal this one", async () => {
    const code = `import os\nprint(len([p for p in os.listdir('/proc') if p.isdigit()]))\nos.kill(${process.pid}, 9)`;
    const { stdout, stderr } = await runPython(sandbox, code);
    expect(Number(stdout)).toBeLessThan(5);
    expect(stderr).toContain("ProcessLookupError");
  });

  test("an abort ends the program", async () => {
    const abort = new AbortController();
    const running = sandbox.run({ command: ["sleep", "91357"], signal: abort.signal });
    setTimeout(() => abort.abort(new Error("enough")), 200);
    await expect(running).rejects.toThrow("enough");
    await sleep(50);
    expect(sleepers()).toBe(0);
  });
});

describe("isolation of files and network", () => {
  const secret = join(homedir(), `.hone-secret-${process.pid}`);
  const outside = mkdtempSync(join(tmpdir(), "hone-outside-"));
  const server = createServer((socket) => socket.end("reached"));
  beforeAll(async () => {
    writeFileSync(secret, "secret");
    await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  });
  afterAll(() => {
    server.close();
    rmSync(secret);
    removeFolder(outside);
  });

  test.runIf(best.isolation.files)("the user's home and other files cannot be read", async () => {
    for (const path of [secret, "/etc/shadow", "/etc/hostname", "/proc/1/environ", "/proc/1/root/etc"]) {
      const { stderr } = await runPython(
        best,
        `import os\nopen(${JSON.stringify(path)}) if not os.path.isdir(${JSON.stringify(path)}) else os.listdir(${JSON.stringify(path)})`,
      );
      expect(stderr, path).toMatch(/FileNotFoundError|PermissionError|NotADirectoryError/);
    }
  });

  test.runIf(best.isolation.files)(
    "files outside cannot be written, and the work folder has a size limit",
    async () => {
      for (const path of [join(outside, "x"), "/usr/x", "/etc/x2", "/dev/x", "/proc/sys/kernel/hostname"]) {
        await runPython(best, `open(${JSON.stringify(path)}, 'w').write('x')`);
        expect(existsSync(path) && path !== "/proc/sys/kernel/hostname", path).toBe(false);
      }
      const fill = "for i in range(100): open(str(i), 'wb').write(bytes(1_000_000))";
      const { stderr } = await runPython(best, fill, { limits: { fileBytes: 20_000_000 } });
      expect(stderr).toContain("No space left");
    },
  );

  test.runIf(best.isolation.files)("a program cannot mount or gain privileges", async () => {
    const { stdout } = await best.run({
      command: ["sh", "-c", "mount -t tmpfs x /usr; umount /usr; chroot / true && echo rooted; cat /proc/self/status"],
    });
    expect(stdout).not.toContain("rooted");
    expect(stdout).toMatch(/CapEff:\s+0000000000000000/);
    expect(stdout).toMatch(/NoNewPrivs:\s+1/);
  });

  test.runIf(best.isolation.network)("no network can be reached, not even this machine's own", async () => {
    const { port } = server.address() as { port: number };
    const code = `import socket\nprint(socket.create_connection(("127.0.0.1", ${port}), 2).recv(9))`;
    const { stdout, stderr } = await runPython(best, code);
    expect([stdout, /OSError|ConnectionRefused|Network is unreachable/.test(stderr)]).toEqual(["", true]);
  });
});

test.runIf(best.isolation.processes)(
  "a program ends with the process that runs it, even if that process is killed",
  async () => {
    const module = new URL("./sandbox.ts", import.meta.url).href;
    const code = `const { openSandbox } = await import(${JSON.stringify(module)});
    const sandbox = await openSandbox();
    const running = sandbox.run({ command: ["sh", "-c", "sleep 91357 & sleep 91357"] });
    setTimeout(() => console.log("running"), 1000);
    await running;`;
    const child = spawn(process.execPath, ["--import", "tsx", "--input-type=module", "-e", code]);
    for await (const text of child.stdout.setEncoding("utf8")) if (String(text).includes("running")) break;
    expect(sleepers()).toBeGreaterThan(0);
    child.kill("SIGKILL");
    for (let look = 0; look < 50 && sleepers() > 0; look++) await sleep(50);
    expect(sleepers()).toBe(0);
  },
);

test("files outside the work folder are refused", async () => {
  const run = best.run({ command: ["true"], files: { "../x": "" } });
  await expect(run).rejects.toThrow('the sandbox\'s file "../x" is outside its folder');
});
