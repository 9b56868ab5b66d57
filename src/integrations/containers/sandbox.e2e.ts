/** Code graders in containers. Without a container engine these tests do not run, and say so. */
import { afterAll, describe, expect, test } from "vitest";
import { ownerMark } from "../../base/files.ts";
import { nightly } from "../../nightly.fixture.ts";
import { type CodeTest, codeTests } from "../../rewards/code.ts";
import { forgeries, squareTest } from "../../rewards/forgeries.fixture.ts";
import { hostImage, testEngine } from "./host-image.fixture.ts";
import { containerSandbox } from "./sandbox.ts";

const engine = await testEngine();
if (typeof engine === "string") console.warn(`NOT RUN: code graders in containers (${engine})`);
const sandbox =
  typeof engine === "string" ? undefined : await containerSandbox({ image: await hostImage(engine, "-languages") });

const left = async () => {
  if (typeof engine === "string") return [];
  const { stdout } = await engine.run(["ps", "-aq", "--filter", `label=hone.owner=${ownerMark}`]);
  return stdout.split("\n").filter(Boolean);
};
afterAll(async () => {
  await sandbox?.close();
  for (const id of await left()) if (typeof engine !== "string") await engine.run(["rm", "-f", "-v", id]);
});

const limits = { cpuSeconds: 2, seconds: 20 };
const grade = async (code: string, wanted: CodeTest, language: "python" | "javascript" = "python") =>
  codeTests(`\`\`\`\n${code}\n\`\`\``, [wanted], { sandbox: sandbox!, language, limits });

describe.skipIf(sandbox === undefined)("in a container", () => {
  test("the verdicts are those of the other levels, in both languages", async () => {
    expect(sandbox!.isolation).toMatchObject({ level: "container", network: true, files: true, lifetime: true });
    const square = "def square(x): return x * x";
    const right: [string, CodeTest, "python" | "javascript"][] = [
      ["print(sum(map(int, input().split())))", { stdin: "2 3", stdout: "5\n" }, "python"],
      [square, { call: "square", arguments: [3], returns: 9 }, "python"],
      [square, squareTest, "python"],
      ["const square = async (x) => x * x;", { call: "square", arguments: [3], returns: 9 }, "javascript"],
      ["const square = (x) => x * x;", { code: "assert.equal(square(2), 4);" }, "javascript"],
    ];
    // CI tries a test in each language.
    for (const [code, wanted, language] of right.filter((_, index) => nightly || index === 2 || index === 4)) {
      expect(await grade(code, wanted, language), code).toMatchObject({ reward: 1 });
    }
    const wrong = await grade("def square(x): return x + 2", squareTest);
    expect([wrong.reward, wrong.explanation]).toEqual([0, expect.stringContaining("AssertionError")]);
  });

  const kinds = /answers on the channel/;
  test.each(forgeries.filter(([name]) => nightly || kinds.test(name)))(
    "a program that %s does not pass asserts",
    async (_name, code, why) => {
      const { reward, explanation } = await grade(code, squareTest);
      expect([reward, explanation]).toEqual([0, expect.stringContaining(why)]);
    },
  );

  const run = (code: string, more: object = {}) =>
    sandbox!.run({ command: ["python", "main.py"], files: { "main.py": code }, limits: { ...limits, ...more } });

  test("it sees no network, no files and no processes of this machine, and has no rights", async () => {
    const look = `
import glob, os, socket
def tries(what):
    try: return what()
    except OSError as error: return type(error).__name__
print(tries(lambda: socket.create_connection(("127.0.0.1", 9), 1)), tries(lambda: socket.getaddrinfo("example.com", 80)))
print(os.path.exists(${JSON.stringify(process.cwd())}), len([p for p in os.listdir("/proc") if p.isdigit()]) < 12)
print(tries(lambda: open("/usr/bin/x", "w")), tries(lambda: os.setuid(0)), os.getuid() >= 20000)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith(("CapEff", "NoNewPrivs"))])
print(sorted(glob.glob("*")), os.getcwd())
`;
    const { stdout, stderr } = await run(look);
    expect(stderr).toBe("");
    expect(stdout.split("\n").slice(0, 5)).toEqual([
      "ConnectionRefusedError gaierror",
      "False True",
      "OSError PermissionError True",
      "['0000000000000000', '1']",
      "['main.py'] /work",
    ]);
  });

  test("limits of output, time, files, processes and memory end it, and nothing is left", async () => {
    const { isolation } = sandbox!;
    expect(await run("while True: print('x' * 1000)", { outputBytes: 10_000 })).toMatchObject({ ended: "output" });
    if (nightly) {
      expect(await run("while True: pass", { cpuSeconds: 1 })).toMatchObject({ ended: "time", exitCode: null });
      expect(await run("import time; time.sleep(60)", { seconds: 1 })).toMatchObject({ ended: "time" });
      const full = await run("open('a', 'wb').write(bytes(9_000_000))", { fileBytes: 2 ** 20 });
      expect(full.exitCode === 0).toBe(false);
    }
    const fork = "import os, time\nfor n in range(200):\n  if os.fork() == 0: time.sleep(60)";
    const forked = await run(fork, { processes: 20 });
    expect([forked.exitCode, forked.stderr]).toEqual([1, expect.stringContaining("BlockingIOError")]);
    if (nightly && isolation.memory === "cgroup") {
      const sharing =
        "import os, time\nfor n in range(8):\n  if os.fork() == 0:\n    b = bytearray(40_000_000); time.sleep(9)\nfor n in range(8): os.wait()";
      expect(await run(sharing, { memoryBytes: 128 * 2 ** 20 })).toMatchObject({ ended: "memory" });
    }
    await sandbox!.close();
    expect(await left()).toEqual([]);
    expect(sandbox!.counts()).toMatchObject({ waiting: 0, ready: expect.any(Number) });
  });
});
