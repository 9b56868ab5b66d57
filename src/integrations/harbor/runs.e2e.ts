/** Runs on Harbor tasks that are interrupted, whose parts are killed, or two at once: nothing is left. Only in nightly. */
import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import { closeSync, existsSync, mkdirSync, mkdtempSync, openSync, readFileSync, rmSync, writeSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { beforeAll, expect, test } from "vitest";
import { freePort } from "../../base/processes.ts";
import { nightly } from "../../nightly.fixture.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import type { Engine } from "../containers/engine.ts";
import { hostImage, testEngine } from "../containers/host-image.fixture.ts";
import { makeTask, testsFolder } from "./make-tasks.fixture.ts";
import { hostName } from "./trial.ts";
import { watchTrials } from "./trials.fixture.ts";

const engine = nightly ? await testEngine() : "only in nightly";
if (nightly && typeof engine === "string") console.warn(`NOT RUN: runs in containers (${engine})`);
const runs = test.skipIf(typeof engine === "string");
const { run: podman } = engine as Engine;

const root = temporaryFolder("harbor-runs");
const tasks = join(root, "tasks");
const program = fileURLToPath(new URL("train.fixture.ts", import.meta.url));

beforeAll(async () => {
  if (typeof engine === "string") return;
  const image = await hostImage(engine);
  for (const word of ["done", "ready"]) makeTask(tasks, image, word);
}, 300_000);

interface Run {
  child: ChildProcess;
  output(): string;
  ended: Promise<number | null>;
}

function start(folder: string, temporary: string, ...options: string[]): Run {
  const env = { ...process.env, PYTHONPATH: testsFolder, TMPDIR: temporary };
  // A group of its own, as in a terminal, where Ctrl-C reaches all of it.
  const group = { env, detached: true };
  const child = spawn(process.execPath, ["--import", "tsx", program, tasks, folder, ...options], group);
  let output = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding("utf8").on("data", (text: string) => {
      output += text;
    });
  }
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  return { child, output: () => output, ended };
}

/** Tries until it succeeds. */
async function until<Value>(run: Run, what: string, attempt: () => Promise<Value | undefined>): Promise<Value> {
  for (;;) {
    const found = await attempt();
    if (found !== undefined) return found;
    if (run.child.exitCode !== null) throw new Error(`the run ended before ${what}:\n${run.output()}`);
    await sleep(100);
  }
}

const metricsOf = (folder: string) =>
  readFileSync(join(folder, "metrics.jsonl"), "utf8")
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, number>);

const stepsOf = (folder: string) =>
  existsSync(join(folder, "metrics.jsonl")) ? metricsOf(folder).map(({ step }) => step) : [];

const killAgent = `for p in /proc/[0-9]*; do read -r -d "" name < $p/cmdline 2>/dev/null
[ "$name" = hone-bash-agent ] && kill -9 "\${p#/proc/}" && exit 0; done; exit 1`;

/** Whether the process of Harbor that this trainer started is alive. */
function bridgeOf(trainer: number): number | undefined {
  const children = readFileSync(`/proc/${trainer}/task/${trainer}/children`, "utf8").trim().split(" ").filter(Boolean);
  return children
    .map(Number)
    .find((child) => readFileSync(`/proc/${child}/cmdline`, "utf8").includes("hone_harbor/bridge.py"));
}

const isAlive = (pid: number) => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

runs(
  "kill -9 of an agent, a container, the bridge and the trainer: the run goes on, and nothing is left",
  async () => {
    const [folder, temporary] = [join(root, "killed"), mkdtempSync(join(root, "tmp-"))];
    const trials = watchTrials(engine, temporary);
    const first = start(folder, temporary);
    /** A container whose agent works; with \`kill\`, until it was killed. */
    const working = (what: string, kill = "exit 0", except: string[] = []) =>
      until(first, what, async () => {
        for (const name of (await trials.containers()).filter((name) => !except.includes(name))) {
          const found = await podman([
            "exec",
            name,
            "bash",
            "-c",
            kill === "exit 0" ? killAgent.replace("kill -9", ":") : kill,
          ]);
          if (found.exitCode === 0) return name;
        }
        return undefined;
      });

    const agentless = await working("an agent was killed", killAgent);
    const killed = await working("a container was killed", undefined, [agentless]);
    await podman(["kill", killed]);
    await until(first, "step 1", async () => (/step 1\/3/.test(first.output()) ? true : undefined));
    expect(first.output()).toMatch(/exit code 137/);

    await working("step 2 began");
    const bridge = bridgeOf(first.child.pid!)!;
    process.kill(bridge, "SIGKILL");
    await until(first, "step 2", async () => (/step 2\/3/.test(first.output()) ? true : undefined));
    expect(first.output()).toMatch(/Harbor's bridge ended by SIGKILL/);

    await working("step 3 began");
    const second = bridgeOf(first.child.pid!)!;
    expect(second).not.toBe(bridge);
    first.child.kill("SIGKILL");
    await first.ended;
    // The engine's own process keeps a container, which the next start removes.
    expect((await trials.containers()).length).toBeGreaterThan(0);
    for (let tries = 0; isAlive(second) && tries < 100; tries++) await sleep(100);
    expect(isAlive(second)).toBe(false);

    // It is found by its label, also if the temporary folder is new.
    rmSync(temporary, { recursive: true });
    mkdirSync(temporary);
    const resumed = start(folder, temporary, "resume");
    expect(await resumed.ended, resumed.output()).toBe(0);
    expect(resumed.output()).toContain("continuing after step 2");
    expect(stepsOf(folder)).toEqual([1, 2, 3]);
    expect(await trials.left()).toEqual([]);
    expect(trials.ownFolders()).toEqual([]);
  },
  900_000,
);

runs(
  "two runs at once on the same tasks: both end, and neither removes what the other uses",
  async () => {
    const temporary = mkdtempSync(join(root, "tmp-"));
    const trials = watchTrials(engine, temporary);
    const both = ["left", "right"].map((name) => join(root, name));
    const started = both.map((folder) => start(folder, temporary));
    expect(
      await Promise.all(started.map(({ ended }) => ended)),
      started.map(({ output }) => output()).join("\n"),
    ).toEqual([0, 0]);
    for (const { output } of started) expect(output()).not.toMatch(/retrying|failed/);
    // With the same seed, what they learn is the same, too.
    const [left, right] = both.map((folder) => metricsOf(folder).map((line) => [line.step, line["reward/mean"]]));
    expect(left).toEqual(right);
    expect(left).toEqual([1, 2, 3].map((step) => [step, expect.any(Number)]));
    expect(trials.names.size).toBe(24);
    expect(await trials.left()).toEqual([]);
    expect(trials.ownFolders()).toEqual([]);
  },
  900_000,
);

runs(
  "Ctrl-C ends the step, a second one ends at once: nothing is left, and the run goes on",
  async () => {
    const [folder, temporary] = [join(root, "interrupted"), mkdtempSync(join(root, "tmp-"))];
    const trials = watchTrials(engine, temporary);
    const press = (run: Run) => process.kill(-run.child.pid!, "SIGINT");
    const inStep = (run: Run, step: number) =>
      until(run, `step ${step} began`, async () =>
        stepsOf(folder).includes(step - 1) && (await trials.containers()).length > 1 ? true : undefined,
      );
    const nothingIsLeft = async () => {
      expect(await trials.left()).toEqual([]);
      expect(trials.ownFolders()).toEqual([]);
    };
    const first = start(folder, temporary);
    await inStep(first, 2);
    press(first);
    expect(await first.ended, first.output()).toBe(130);
    expect(first.output()).toMatch(/stopping after this step and saving; Ctrl-C again stops at once/);
    expect(first.output()).toMatch(/step 2 is saved; to continue, add --resume/);
    await nothingIsLeft();

    const second = start(folder, temporary, "resume");
    await inStep(second, 3);
    press(second);
    await until(second, "it said so", async () =>
      /stopping after this step/.test(second.output()) ? true : undefined,
    );
    press(second);
    expect(await second.ended, second.output()).toBe(130);
    await nothingIsLeft();

    const third = start(folder, temporary, "resume");
    expect(await third.ended, third.output()).toBe(0);
    expect(stepsOf(folder)).toEqual([1, 2, 3]);
    await nothingIsLeft();
  },
  900_000,
);

runs(
  "with a network of their own, containers reach the gateway under the run's own key, and nothing else of this machine",
  async () => {
    const [folder, temporary] = [join(root, "bridge"), mkdtempSync(join(root, "tmp-"))];
    const trials = watchTrials(engine, temporary);
    const port = await freePort();
    const run = start(folder, temporary, String(port));
    const name = await until(run, "a container ran", async () => (await trials.containers())[0]);
    const mode = await podman(["inspect", "--format", "{{.HostConfig.NetworkMode}}", name]);
    expect(mode.stdout.trim()).toBe("bridge");
    const connects = (host: string) => podman(["exec", name, "bash", "-c", `exec 3<>/dev/tcp/${host}/${port}`]);
    expect((await connects(hostName)).exitCode).toBe(0);
    expect((await connects("127.0.0.1")).exitCode).toBe(1);
    const models = (key: string) =>
      fetch(`http://127.0.0.1:${port}/v1/models`, { headers: { authorization: `Bearer ${key}` } });
    expect((await models("my-shared-secret")).status).toBe(401);
    expect(await run.ended, run.output()).toBe(0);
    expect(run.output()).not.toMatch(/retrying|failed/);
    expect(stepsOf(folder)).toEqual([1, 2, 3]);
    expect(await trials.left()).toEqual([]);
  },
  900_000,
);

/** Writes until nothing fits. */
function fill(file: string): void {
  const descriptor = openSync(file, "w");
  for (let size = 1 << 20; size > 0; size >>= 1) {
    try {
      while (true) writeSync(descriptor, Buffer.alloc(size));
    } catch (error) {
      expect((error as NodeJS.ErrnoException).code).toBe("ENOSPC");
    }
  }
  closeSync(descriptor);
}

// A disk of one's own needs root.
test.skipIf(typeof engine === "string" || process.getuid?.() !== 0)(
  "a full disk ends the run with a sentence and leaves nothing; with space, the run goes on",
  async () => {
    const disk = mkdtempSync(join(root, "disk-"));
    execFileSync("mount", ["-t", "tmpfs", "-o", "size=48m", "tmpfs", disk]);
    try {
      const [folder, temporary, filler] = [join(disk, "run"), join(disk, "tmp"), join(disk, "filler")];
      mkdirSync(temporary);
      const trials = watchTrials(engine, temporary);
      const first = start(folder, temporary);
      await until(first, "step 1", async () => (/step 1\/3/.test(first.output()) ? true : undefined));
      fill(filler);
      expect(await first.ended, first.output()).toBe(1);
      expect(first.output()).toMatch(/the disk is full|No space left on device/);
      expect(await trials.left()).toEqual([]);
      expect(trials.ownFolders()).toEqual([]);

      rmSync(filler);
      const resumed = start(folder, temporary, "resume");
      expect(await resumed.ended, resumed.output()).toBe(0);
      expect(stepsOf(folder)).toEqual([1, 2, 3]);
      expect(await trials.left()).toEqual([]);
      expect(trials.ownFolders()).toEqual([]);
    } finally {
      execFileSync("umount", ["-l", disk]);
    }
  },
  900_000,
);
