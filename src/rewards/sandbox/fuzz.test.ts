/**
 * Random hostile programs: each run ends within its limits, is graded zero, reaches nothing outside, and leaves no process and
 * no folder.
 * HONE_FUZZ_SECONDS=3600 runs it for an hour instead of a few seconds.
 */
// Slow: random programs in sandboxes.
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { ownerMark } from "../../base/files.ts";
import { deriveSeed, uniforms } from "../../base/values.ts";
import { fuzzCases, fuzzTimeout } from "../../fuzz-time.fixture.ts";
import { removeFolder } from "../../temporary-folder.fixture.ts";
import { type CodeTest, codeTests } from "../code.ts";
import { hostileProgram } from "./fuzz-programs.fixture.ts";
import { listProcesses } from "./limits.ts";
import { openSandbox } from "./sandbox.ts";

const limits = {
  ...{ cpuSeconds: 1, seconds: 3, processes: 24 },
  ...{ memoryBytes: 160 * 2 ** 20, fileBytes: 20 * 2 ** 20, outputBytes: 200_000 },
};
/** Covers two programs in sequence, each with its set-up, on a busy machine. */
const maxSeconds = 60;

const tests: Record<"python" | "javascript", CodeTest[]> = {
  python: [
    { code: "assert square(2) == 4\nassert square(3) == 9" },
    { call: "square", arguments: [3], returns: 9 },
    { stdin: "3", stdout: "9" },
  ],
  javascript: [
    { code: "assert.strictEqual(square(2), 4);\nif (square(3) !== 9) throw new Error('not 9');" },
    { call: "square", arguments: [3], returns: 9 },
    { stdin: "3", stdout: "9" },
  ],
};

/** Processes of this process's sandboxes: children, processes with their marker, processes in their cgroups. */
function processesLeft(): string[] {
  const mark = `hone-sandbox-${ownerMark}`;
  const left = listProcesses().filter(({ pid, parent, command }) => {
    if (parent === process.pid && command.includes("launch.py")) return true;
    return ["environ", "cgroup"].some((name) => read(`/proc/${pid}/${name}`).includes(mark));
  });
  return left.map(({ pid, command }) => `${pid} ${command}`);
}

function read(path: string): string {
  try {
    return readFileSync(path, "latin1");
  } catch {
    return "";
  }
}

/** A folder and servers that no program may reach. */
async function openOutside() {
  const folder = mkdtempSync(join(tmpdir(), "hone-fuzz-outside-"));
  writeFileSync(join(folder, "file"), "kept");
  let reached = 0;
  const serve = () =>
    createServer((socket) => {
      reached++;
      socket.on("error", () => {}).destroy();
    });
  const [loopback, local] = [serve().listen(0, "127.0.0.1"), serve().listen(join(folder, "socket"))];
  await Promise.all([loopback, local].map((server) => once(server, "listening")));
  const shared = `/dev/shm/hone-fuzz-${process.pid}`;
  return {
    folder,
    port: (loopback.address() as AddressInfo).port,
    look: () => [reached, readdirSync(folder), read(join(folder, "file")), existsSync(shared)],
    close() {
      loopback.close();
      local.close();
      removeFolder(folder);
    },
  };
}

const foldersLeft = () => readdirSync(tmpdir()).filter((name) => name.startsWith(`hone-sandbox-${ownerMark}`));

test(
  "hostile programs never pass a test, block a run or leave anything behind",
  async () => {
    const best = await openSandbox({ atLeast: "process" });
    const sandboxes = [best, await openSandbox({ only: "process" })];
    let cases = 0;
    let slowest = 0;
    const outside = await openOutside();
    for (const index of fuzzCases(10)) {
      const random = uniforms(deriveSeed(12, "sandbox", index));
      const { language, code } = hostileProgram(random, outside);
      const wanted = tests[language][Math.floor(random() * 3)] as CodeTest;
      const sandbox = sandboxes[index % 2] ?? best;
      const what = `case ${index}, level ${sandbox.isolation.level}, ${JSON.stringify(wanted)}:\n${code}`;
      const start = performance.now();
      const grade = await codeTests(`\`\`\`\n${code}\n\`\`\``, [wanted], { sandbox, language, limits }).catch(
        (error) => {
          throw new Error(what, { cause: error });
        },
      );
      const seconds = (performance.now() - start) / 1000;
      expect([grade.reward, grade.correct], `${what}\n${grade.explanation}`).toEqual([0, false]);
      expect(seconds, what).toBeLessThan(maxSeconds);
      if (sandbox.isolation.lifetime) {
        let left = processesLeft();
        // The kernel ends the other processes of a namespace a moment after its first process.
        for (let look = 0; look < 40 && left.length > 0; look++, left = processesLeft()) await sleep(50);
        expect(left, what).toEqual([]);
      }
      // A run does not wait for a removal that takes long on a busy machine.
      for (let look = 0; look < 1200 && foldersLeft().length > 0; look++) await sleep(50);
      expect(foldersLeft(), what).toEqual([]);
      expect(outside.look(), what).toEqual([0, ["file", "socket"], "kept", false]);
      cases++;
      slowest = Math.max(slowest, seconds);
    }
    outside.close();
    const honest = await codeTests("```\ndef square(x): return x * x\n```", tests.python.slice(0, 2), {
      sandbox: best,
    });
    expect(honest.explanation).toContain("2 of 2 tests passed");
    console.log(`${cases} hostile programs; the slowest took ${slowest.toFixed(1)} s`);
  },
  fuzzTimeout,
);
