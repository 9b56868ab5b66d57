// Slow: a file is cut at each byte.

import { spawnSync } from "node:child_process";
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { hostname } from "node:os";
import { basename, join } from "node:path";
import fc from "fast-check";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { UserError } from "../base/errors.ts";
import { parseLines } from "../json-lines.fixture.ts";
import { temporaryFolder, testFolder } from "../temporary-folder.fixture.ts";
import type { Episode } from "../trajectories/types.ts";
import { createRunFolder, openRunFolder, type RunFolder, readMetrics, runFilesSubscriber } from "./run-folder.ts";

let root: string;
let opened: RunFolder[];
beforeEach(() => {
  root = testFolder("runs");
  opened = [];
});
afterEach(() => {
  for (const folder of opened) folder.close();
});

const noted = (folder: RunFolder) => {
  opened.push(folder);
  return folder;
};
const create = (project = "hone", experiment = "first") =>
  noted(createRunFolder({ root, project, experiment, now: new Date(2026, 0, 31, 23, 59, 5) }));
const reopen = (folder: RunFolder) => {
  folder.close();
  return noted(openRunFolder(folder.path));
};
const read = (folder: RunFolder, name: string) => readFileSync(join(folder.path, name), "utf8");
const metricsLine = (step: number, kind?: "validation") => ({
  step,
  ...(kind ? { kind } : { epoch: 0 }),
  time: "2026-01-31T00:00:00.000Z",
  metrics: { "reward/mean": step / 10 },
});

describe("createRunFolder", () => {
  it("names it by project, experiment and time, and links the latest that has begun", () => {
    const first = create();
    first.writeConfig("", new Map());
    expect(first.path).toBe(join(root, "hone-first-20260131-235905"));
    const second = create("my org/hone", "../ö 1");
    expect(second.path).toBe(join(root, "my-org-hone-ö-1-20260131-235905"));
    expect(readlinkSync(join(root, "latest"))).toBe("hone-first-20260131-235905");
    second.writeConfig("", new Map());
    expect(readlinkSync(join(root, "latest"))).toBe("my-org-hone-ö-1-20260131-235905");
    expect(readdirSync(second.path).sort()).toEqual([
      ".lock",
      "checkpoints",
      "config.yaml",
      "episodes",
      "origins.json",
    ]);
  });

  it("gives runs of the same second different folders", () => {
    expect([create(), create(), create()].map(({ path }) => path.slice(root.length + 1))).toEqual([
      "hone-first-20260131-235905",
      "hone-first-20260131-235905-2",
      "hone-first-20260131-235905-3",
    ]);
  });

  it("does not replace a file or folder named latest", () => {
    mkdirSync(join(root, "latest"));
    const run = create();
    run.writeConfig("", new Map());
    expect(read(run, "log.txt")).toMatch(/latest is not a link and was left unchanged/);
  });
});

it("an abandoned folder is removed unless a run has begun in it", () => {
  const [empty, begun] = [create(), create()];
  begun.writeConfig("", new Map());
  for (const run of [empty, begun]) run.abandon();
  expect([existsSync(empty.path), existsSync(begun.path)]).toEqual([false, true]);
});

describe("openRunFolder", () => {
  it("creates a folder with the user's name, opens it again, and follows links to their current target", () => {
    const own = noted(openRunFolder(join(root, "mine")));
    own.writeConfig("a: 1\n", new Map());
    expect(read(own, "config.yaml")).toBe("a: 1\n");
    expect(reopen(own).path).toBe(own.path);
    const run = create();
    run.writeConfig("", new Map());
    run.close();
    expect(noted(openRunFolder(join(root, "latest"))).path).toBe(run.path);
  });

  it("refuses files, and folders that are not run folders", () => {
    writeFileSync(join(root, "file"), "");
    expect(() => openRunFolder(join(root, "file"))).toThrow(/is a file/);
    expect(() => openRunFolder(root)).toThrow(/not a run folder: it contains file/);
  });
});

describe("the lock", () => {
  const lock = (folder: RunFolder) => join(folder.path, ".lock");
  const holder = (fields: object) => ({
    pid: process.pid,
    host: hostname(),
    started: null,
    since: "2026-01-01",
    ...fields,
  });
  const dead = () => spawnSync(process.execPath, ["-e", ""]).pid;

  it("refuses a second trainer and names the first", () => {
    const folder = create();
    const refused = (() => {
      try {
        openRunFolder(folder.path);
      } catch (error) {
        return error as UserError;
      }
    })();
    expect(refused).toBeInstanceOf(UserError);
    expect(refused?.message).toMatch(new RegExp(`in use by process ${process.pid}, since 20`));
    expect(refused?.hint).toMatch(new RegExp(`kill ${process.pid}`));
    expect(readdirSync(folder.path).filter((name) => name.startsWith(".lock"))).toEqual([".lock"]);
  });

  it.each([
    ["whose process is gone", () => JSON.stringify(holder({ pid: dead() }))],
    ["whose process id now belongs to another process", () => JSON.stringify(holder({ started: "an earlier boot/1" }))],
    ["that a power cut left empty", () => ""],
  ])("is taken over from a trainer %s", (_what, content) => {
    const folder = create();
    folder.close();
    writeFileSync(lock(folder), content());
    noted(openRunFolder(folder.path));
    expect(JSON.parse(readFileSync(lock(folder), "utf8"))).toMatchObject({ pid: process.pid });
    expect(readdirSync(folder.path).filter((name) => name.startsWith(".lock"))).toEqual([".lock"]);
  });

  it("is kept if it belongs to another machine", () => {
    const folder = create();
    folder.close();
    writeFileSync(lock(folder), JSON.stringify(holder({ host: "elsewhere", pid: 1 })));
    expect(() => openRunFolder(folder.path)).toThrow(/process 1 on elsewhere/);
  });

  it("is released once, and not if another process has taken it over", () => {
    const folder = create();
    folder.close();
    expect(existsSync(lock(folder))).toBe(false);
    const next = noted(openRunFolder(folder.path));
    writeFileSync(lock(next), JSON.stringify(holder({ since: "later" })));
    next.close();
    expect(existsSync(lock(next))).toBe(true);
  });
});

describe("rewind", () => {
  function filled(): RunFolder {
    const folder = create();
    for (const line of [
      metricsLine(0, "validation"),
      metricsLine(1),
      metricsLine(2),
      metricsLine(2, "validation"),
      metricsLine(3),
    ]) {
      folder.appendMetrics(line);
    }
    for (const step of [0, 2]) folder.writeEpisodes(step, [], "validation");
    for (const step of [1, 2, 3]) folder.writeEpisodes(step, []);
    return folder;
  }
  const steps = (text: string) =>
    text
      .split("\n")
      .filter(Boolean)
      .map((line) => (JSON.parse(line) as { step: number }).step);

  it("moves later lines and incomplete lines away", () => {
    const folder = filled();
    writeFileSync(join(folder.path, "metrics.jsonl"), `${read(folder, "metrics.jsonl")}{"step": 4, "rew`);
    const { discarded } = folder.rewind(2);
    expect([...folder.history()]).toEqual([
      { step: 1, metrics: { "reward/mean": 0.1 } },
      { step: 2, metrics: { "reward/mean": 0.2 } },
    ]);
    expect(discarded).toBe(2);
    expect(steps(read(folder, "metrics.jsonl"))).toEqual([0, 1, 2, 2]);
    expect(read(folder, "metrics.discarded.jsonl")).toMatch(/^\{"step":3,.*\n\{"step": 4, "rew\n$/);
    expect(readMetrics(folder.path, "validation").map(({ step }) => step)).toEqual([0, 2]);
    expect(readdirSync(join(folder.path, "episodes")).sort()).toEqual([
      "discarded",
      "step-000000-validation.jsonl",
      "step-000001.jsonl",
      "step-000002-validation.jsonl",
      "step-000002.jsonl",
    ]);
    expect(readdirSync(join(folder.path, "episodes", "discarded"))).toEqual(["step-000003.jsonl"]);
    expect(read(folder, "log.txt")).toMatch(
      /cut off and has been moved.*\n.*after the checkpoint of step 2: 2 lines of metrics, 1 episode file/,
    );
  });

  it("starts from the beginning without a checkpoint", () => {
    const folder = filled();
    expect(folder.rewind(null)).toEqual({ discarded: 5 });
    expect(read(folder, "metrics.jsonl")).toBe("");
    expect(folder.rewind(null)).toEqual({ discarded: 0 });
    expect([...folder.history()]).toEqual([]);
  });

  it("completes a last line without a line break", () => {
    const folder = filled();
    const text = read(folder, "metrics.jsonl");
    writeFileSync(join(folder.path, "metrics.jsonl"), text.slice(0, -1));
    expect(folder.rewind(3).discarded).toBe(0);
    expect(read(folder, "metrics.jsonl")).toBe(text);
  });

  // Wherever a run is killed and resumed, no line is incomplete, of a later step, or lost.
  it("repairs a file cut at any byte", () => {
    const folder = create();
    const file = join(folder.path, "metrics.jsonl");
    const lines = [1, 2, 3, 4].map((step) => JSON.stringify({ step, "reward/mean": step }));
    const whole = `${lines.join("\n")}\n`;
    fc.assert(
      fc.property(fc.nat(whole.length), fc.nat(5), (cut, step) => {
        rmSync(join(folder.path, "metrics.discarded.jsonl"), { force: true });
        writeFileSync(file, whole.slice(0, cut));
        const { discarded } = folder.rewind(step);
        const history = [...folder.history()];
        const written = whole.slice(0, cut).split("\n").filter(Boolean);
        const complete = written.filter((line) => lines.includes(line));
        expect(history.map((one) => one.step)).toEqual(
          complete.map((_, index) => index + 1).filter((one) => one <= step),
        );
        expect(history.length + discarded).toBe(written.length);
        expect(read(folder, "metrics.jsonl")).toMatch(/^([^\n]+\n)*$/);
      }),
      { numRuns: 60 },
    );
  });
});

describe("leftovers of kill -9", () => {
  const { pid } = spawnSync(process.execPath, ["-e", ""]);
  const dead = `@${hostname()}@${pid}@0`;

  it("are removed by the next start in the same run folder", () => {
    const folder = create();
    folder.writeConfig("", new Map());
    folder.close();
    const left = [".metrics.jsonl", "episodes/.step-000004.jsonl"].map((name) => `${name}.${dead}.partial`);
    for (const name of [...left, `.lock.${dead}`]) writeFileSync(join(folder.path, name), "half");
    openRunFolder(folder.path);
    const names = readdirSync(folder.path, { recursive: true, encoding: "utf8" });
    expect(names.filter((name) => name.includes(dead))).toEqual([]);
  });

  it("are removed by the next run in the same root if their process has ended", () => {
    const unbegun = (name: string, holder: object) => {
      mkdirSync(join(root, name, "checkpoints"), { recursive: true });
      writeFileSync(join(root, name, ".lock"), JSON.stringify(holder));
    };
    unbegun("killed", { pid, host: hostname(), started: null, since: "" });
    unbegun("elsewhere", { pid, host: "elsewhere", started: null, since: "" });
    unbegun("begun", { pid, host: hostname(), started: null, since: "" });
    writeFileSync(join(root, "begun", "config.yaml"), "");
    writeFileSync(join(root, `.latest.${dead}.partial`), "");
    writeFileSync(join(root, "notes.txt"), "");
    const { path } = create();
    expect(readdirSync(root).sort()).toEqual([basename(path), "begun", "elsewhere", "notes.txt"].sort());
  });
});

it("writes complete episodes with exact tokens and log-probabilities", () => {
  const folder = create();
  const step = {
    promptTokens: Int32Array.of(1, 2),
    tokens: Int32Array.of(3),
    logprobs: Float32Array.of(-0.1),
    policyVersion: 2,
    stopReason: "stop" as const,
    text: "ö",
    messages: [{ role: "user" as const, content: "hi\nthere" }],
    reward: null,
  };
  const trajectory = { name: "agent", steps: [step], reward: 1 };
  const base = {
    taskId: "t/1",
    trajectories: [trajectory],
    termination: "env_done" as const,
    correct: true,
    metrics: {},
  };
  const episodes: Episode[] = [0, 1].map((rollout) => ({
    ...base,
    id: `t/1:${rollout}`,
    rollout,
    retries: 0,
    seconds: 1,
  }));
  folder.writeEpisodes(12, episodes);
  const parsed = parseLines<Episode>(read(folder, "episodes/step-000012.jsonl"));
  expect(parsed.map(({ id }) => id)).toEqual(["t/1:0", "t/1:1"]);
  expect(parsed[0]?.trajectories[0]?.steps[0]).toEqual({
    ...step,
    promptTokens: [1, 2],
    tokens: [3],
    logprobs: [-0.1],
  });
});

it("log.txt describes the run", async () => {
  const folder = create();
  const subscriber = runFilesSubscriber(folder, () => new Date("2026-01-31T00:00:00Z"));
  subscriber.event({ type: "run-start", folder: "runs/a", totalSteps: 2, step: 0, history: [], text: ["a model"] });
  subscriber.event({ type: "rollout-progress", step: 1, done: 1, total: 2, tokens: 3 });
  const metrics = { "reward/mean": 0.5, "actor/grad_norm": Number.NaN };
  subscriber.event({ type: "step-end", step: 1, total: 2, epoch: 3, metrics, seconds: 1.5 });
  subscriber.event({ type: "validation-end", step: 1, metrics: { "val/reward": 0.25 }, seconds: 2 });
  subscriber.event({ type: "checkpoint-saved", step: 1, path: "c", bytes: 2e6, seconds: 0.25 });
  subscriber.event({ type: "run-end", reason: "failed", text: "no more" });
  await subscriber.close();
  expect(read(folder, "metrics.jsonl")).toBe(
    '{"step":1,"epoch":3,"time":"2026-01-31T00:00:00.000Z","reward/mean":0.5,"actor/grad_norm":"NaN"}\n' +
      '{"step":1,"kind":"validation","time":"2026-01-31T00:00:00.000Z","val/reward":0.25}\n',
  );
  expect(readMetrics(folder.path)).toEqual([{ step: 1, metrics }]);
  expect(read(folder, "log.txt").replace(/^\S+ /gm, "")).toBe(
    "a model\nrun folder runs/a: 2 steps\nstep 1/2  reward 0.500  grad NaN   1.5 s\n" +
      "validation  after step 1  reward 0.250  2.0 s\ncheckpoint c  2.0 MB  0.3 s\nfailed: no more\n",
  );
});

it("makes run folders private, and keeps the permissions of an existing folder", () => {
  const root = temporaryFolder("modes");
  const permissions = (path: string) => (statSync(path).mode & 0o777).toString(8);
  const made = createRunFolder({ root, project: "p", experiment: "e" });
  made.close();
  const named = openRunFolder(join(root, "named"));
  named.close();
  mkdirSync(join(root, "shared"), { mode: 0o755 });
  chmodSync(join(root, "shared"), 0o755);
  openRunFolder(join(root, "shared")).close();
  expect([made.path, named.path, join(root, "shared")].map(permissions)).toEqual(["700", "700", "755"]);
});
