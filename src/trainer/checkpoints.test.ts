import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statfsSync,
  writeFileSync,
} from "node:fs";
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { RunError, UserError } from "../base/errors.ts";
import { memory, removeFolder } from "../temporary-folder.fixture.ts";
import { latestCheckpoint, readCheckpoint, saveCheckpoint } from "./checkpoints.ts";

/** The file system as a power cut sees it: from operation `crashAt` on, nothing is done any more. */
const disk = vi.hoisted(() => ({
  operations: 0,
  crashAt: Number.POSITIVE_INFINITY,
  tear: false,
  free: undefined as number | undefined,
}));

vi.mock("node:fs/promises", async (importActual) => {
  const actual = await importActual<typeof import("node:fs/promises")>();
  type Operation = (...args: never[]) => Promise<unknown>;
  const step = async (run: () => Promise<unknown>, partial: () => Promise<unknown>): Promise<unknown> => {
    const index = disk.operations++;
    if (index < disk.crashAt) return run();
    if (index === disk.crashAt && disk.tear) await partial();
    throw new Error("power cut");
  };
  const wrap =
    (run: Operation, partial: Operation = async () => {}): Operation =>
    (...args) =>
      step(
        () => run(...args),
        () => partial(...args),
      );
  /** Half of a removal: one file of the folder is gone. */
  const removeOne = async (path: string) => {
    const entries = await actual.readdir(path, { withFileTypes: true, recursive: true }).catch(() => []);
    const file = entries.find((entry) => entry.isFile());
    if (file) await actual.rm(join(file.parentPath, file.name));
  };
  const open = async (...args: Parameters<typeof actual.open>) => {
    const handle = await actual.open(...args);
    return new Proxy(handle, {
      get(target, name) {
        if (name === "writeFile")
          return wrap(
            (text: string) => target.writeFile(text),
            (text: string) => target.writeFile(text.slice(0, text.length / 2)),
          );
        if (name === "sync") return wrap(async () => {}); // Counted; a real one would only make the test slow.;
        const value: unknown = Reflect.get(target, name);
        return typeof value === "function" ? value.bind(target) : value;
      },
    });
  };
  return {
    ...actual,
    ...Object.fromEntries(
      (["mkdir", "readdir", "rename", "readFile", "stat"] as const).map((name) => [
        name,
        wrap(actual[name] as Operation),
      ]),
    ),
    writeFile: wrap(actual.writeFile as Operation, async (path: string, text: string) => {
      await actual.writeFile(path, text.slice(0, text.length / 2));
    }),
    rm: wrap(actual.rm as Operation, removeOne),
    open: wrap(open as Operation),
    statfs: async (path: string) => (disk.free === undefined ? actual.statfs(path) : { bavail: disk.free, bsize: 1 }),
  };
});

let root: string;
let folder: string;
beforeEach(() => {
  root = mkdtempSync(join(memory, "checkpoints-"));
  folder = join(root, "checkpoints");
});
afterEach(() => {
  Object.assign(disk, { operations: 0, crashAt: Number.POSITIVE_INFINITY, tear: false, free: undefined });
  vi.restoreAllMocks();
  removeFolder(root);
});

const everything = { maxNumber: 100, maxBytes: 1e12 };
const names = () => readdirSync(folder).sort();
const manifestOf = (step: number) => join(folder, `step-00000${step}`, "checkpoint.json");
const policyFile = (step: number, name = "weights.safetensors") => join(folder, `step-00000${step}`, "policy", name);

function edit(step: number, before: string | RegExp, after: string): void {
  const text = readFileSync(manifestOf(step), "utf8");
  expect(text).toMatch(before);
  writeFileSync(manifestOf(step), text.replace(before, after));
}

function save(
  step: number,
  options: { score?: number; mark?: string; keep?: Partial<typeof everything>; bytes?: number } = {},
) {
  const { score, mark = `mark ${step}`, keep, bytes = 1000 } = options;
  return saveCheckpoint(
    folder,
    {
      step,
      state: { mark, progress: { step } },
      metrics: { "val/reward": score ?? Number.NaN },
      ...(score === undefined ? {} : { score }),
    },
    {
      policy: async (directory) => {
        await mkdir(join(directory, "optimizer"), { recursive: true });
        await writeFile(join(directory, "weights.safetensors"), mark.padEnd(bytes, "."));
        await writeFile(join(directory, "optimizer", "state.safetensors"), mark);
      },
    },
    { ...everything, ...keep },
  );
}

describe("saveCheckpoint", () => {
  it("writes a checkpoint that readCheckpoint and latestCheckpoint return", async () => {
    const saved = await save(3, { score: 0.5 });
    expect(saved.path).toBe(join(folder, "step-000003"));
    expect(saved.bytes).toBe(1006);
    expect(saved.removed).toEqual([]);
    const expected = {
      path: saved.path,
      step: 3,
      state: { mark: "mark 3", progress: { step: 3 } },
      metrics: { "val/reward": 0.5 },
      score: 0.5,
      bytes: 1006,
    };
    expect(await readCheckpoint(saved.path)).toEqual(expected);
    await save(12);
    expect((await latestCheckpoint(folder))?.step).toBe(12);
    expect((await latestCheckpoint(folder))?.metrics).toEqual({ "val/reward": Number.NaN });
  });

  it.each([
    ["the newest ones", [undefined, undefined, undefined, undefined], { maxNumber: 2 }, [3, 4]],
    ["the best besides the newest", [0.1, 0.9, 0.3, 0.2], { maxNumber: 2 }, [2, 4]],
    ["the newer of two that are equally good", [0.9, 0.9, 0.3, 0.2], { maxNumber: 1 }, [2, 4]],
    ["the best and the newest beyond the number", [0.9, 0.1, 0.3, 0.2], { maxNumber: 1 }, [1, 4]],
    ["what fits into the size", [0.1, 0.2, 0.3, 0.4], { maxBytes: 3100 }, [2, 3, 4]],
    ["the newest beyond the size", [0.1, 0.2, 0.3, 0.4], { maxBytes: 10 }, [4]],
    ["nothing for a score that is NaN", [Number.NaN, 0.1, 0.3, 0.2], { maxNumber: 1 }, [3, 4]],
  ])("keeps %s", async (_what, scores, keep, kept) => {
    const removed: string[] = [];
    for (const [index, score] of scores.entries()) {
      const saved = await save(index + 1, { keep, ...(score === undefined ? {} : { score }) });
      removed.push(...saved.removed);
    }
    expect(names()).toEqual(kept.map((step) => `step-00000${step}`));
    expect(removed).toHaveLength(4 - kept.length);
  });

  it("replaces a checkpoint of the same step, and removes later ones after a rewind", async () => {
    for (const step of [1, 2, 3]) await save(step);
    const { removed } = await save(2, { mark: "again" });
    expect(removed).toEqual([join(folder, "step-000003")]);
    expect((await latestCheckpoint(folder))?.state.mark).toBe("again");
  });

  it("reports missing disk space before it writes, and removes what failed", async () => {
    await save(1, { bytes: 5000 });
    disk.free = 2000;
    const refused = await save(2).catch((error: unknown) => error);
    expect(refused).toBeInstanceOf(RunError);
    expect((refused as RunError).message).toMatch(/step 2 in .*needs about 5\.0 kB, and 2\.0 kB are free/);
    disk.free = undefined;
    const full = Object.assign(new Error("no space left on device"), { code: "ENOSPC" });
    const content = { step: 2, state: {}, metrics: {} };
    const failing = async (error: Error) =>
      saveCheckpoint(folder, content, { policy: (path) => mkdir(path).then(() => Promise.reject(error)) }, everything);
    await expect(failing(full)).rejects.toThrow(/the disk is full: .*step-000002 needs 5\.0 kB/);
    await expect(failing(new Error("the worker died"))).rejects.toThrow("the worker died");
    expect(names()).toEqual(["step-000001"]);
    expect(statfsSync(folder).bavail).toBeGreaterThan(0);
  });

  // After a power cut at any operation, the newest whole checkpoint is the old one or the new one, the best is still
  // there, and the next run saves as usual.
  it.each([
    { what: "a new step", step: 4, before: [3, 4], tear: false },
    { what: "a new step, the operation half done", step: 4, before: [3, 4], tear: true },
    { what: "the same step again", step: 3, before: [3], tear: false },
    { what: "the same step again, the operation half done", step: 3, before: [3], tear: true },
  ])("survives a power cut at any operation of saving $what", async ({ step, before, tear }) => {
    vi.spyOn(process, "kill").mockImplementation(() => {
      throw Object.assign(new Error("gone"), { code: "ESRCH" });
    });
    await save(1, { score: 0.9 });
    await save(2);
    await save(3);
    const original = join(root, "original");
    cpSync(folder, original, { recursive: true });
    let crashes = 0;
    for (let crashAt = 0; ; crashAt++) {
      removeFolder(folder);
      cpSync(original, folder, { recursive: true });
      Object.assign(disk, { operations: 0, crashAt, tear });
      const failure = await save(step, { mark: "new", keep: { maxNumber: 2 } }).catch((error: Error) => error);
      Object.assign(disk, { crashAt: Number.POSITIVE_INFINITY });
      if (!(failure instanceof Error)) break;
      expect(failure.message).toBe("power cut");
      crashes++;

      const warnings: string[] = [];
      const latest = await latestCheckpoint(folder, (text) => warnings.push(text));
      expect(before).toContain(latest?.step);
      expect(["new", "mark 3"]).toContain(latest?.state.mark);
      expect(readFileSync(join(latest!.path, "policy", "weights.safetensors"), "utf8")).toMatch(
        latest?.state.mark as string,
      );
      expect(warnings).toEqual([]);
      expect(names().filter((name) => name.startsWith("."))).toEqual([]);

      await save(step, { mark: "newer", keep: { maxNumber: 2 } });
      expect((await latestCheckpoint(folder))?.state.mark).toBe("newer");
      expect(names()).toEqual(["step-000001", `step-00000${step}`]);
    }
    expect(crashes).toBeGreaterThan(30);
  });
});

describe("latestCheckpoint", () => {
  it("returns undefined without a checkpoint", async () => {
    expect(await latestCheckpoint(folder)).toBeUndefined();
    mkdirSync(folder);
    expect(await latestCheckpoint(folder)).toBeUndefined();
  });

  it.each([
    ["a missing file", () => rmSync(policyFile(2)), /weights\.safetensors is missing/],
    ["a file cut short", () => writeFileSync(policyFile(2), "mark 2"), /has 6 bytes instead of 1000/],
    ["other bytes", () => writeFileSync(policyFile(2), "x".repeat(1000)), /content of policy\/weights.* has changed/],
    ["a manifest cut short", () => writeFileSync(manifestOf(2), '{"format'), /JSON/],
    ["an edited step", () => edit(2, '"step":2', '"step":1'), /content of checkpoint\.json has changed/],
    ["edited metrics", () => edit(2, '"NaN"', "0.25"), /content of checkpoint\.json has changed/],
    ["an edited hash", () => edit(2, /"\}\n$/, '0"}\n'), /content of checkpoint\.json has changed/],
    ["its hash no longer at the end", () => edit(2, /\}\n$/, ',"score":9}\n'), /checkpoint\.json has changed/],
    ["no manifest", () => rmSync(manifestOf(2)), /not a checkpoint/],
  ])("skips one with %s and warns", async (_what, damage, message) => {
    await save(1);
    await save(2);
    damage();
    const warnings: string[] = [];
    expect((await latestCheckpoint(folder, (text) => warnings.push(text)))?.step).toBe(1);
    expect(warnings).toEqual([expect.stringMatching(message)]);
  });

  it("a checkpoint of an earlier version, whose checkpoint.json is not hashed, is used with a warning", async () => {
    await save(2);
    edit(2, /,"sha256":"\w+"\}\n$/, "}\n");
    const warnings: string[] = [];
    const warn = (text: string) => warnings.push(text);
    expect((await latestCheckpoint(folder, warn))?.step).toBe(2);
    expect((await readCheckpoint(join(folder, "step-000002"), warn)).step).toBe(2);
    const warning = expect.stringMatching(/step-000002\/checkpoint\.json has no SHA-256/);
    expect(warnings).toEqual([warning, warning]);
  });

  /** 64 bytes in the middle of a file, as a failing disk changes them. */
  function flipBytes(file: string): void {
    const content = readFileSync(file);
    for (let at = content.length >> 1, end = at + 64; at < end; at++) content[at]! ^= 0xff;
    writeFileSync(file, content);
  }

  it("notices flipped bytes in files over 1 MiB", async () => {
    for (const step of [1, 2]) await save(step, { bytes: 3 << 20 });
    flipBytes(policyFile(2));
    const warnings: string[] = [];
    expect((await latestCheckpoint(folder, (text) => warnings.push(text)))?.step).toBe(1);
    expect(warnings).toEqual([
      expect.stringMatching(/content of policy\/weights\.safetensors has changed; step-000001 is used instead$/),
    ]);
  });

  it("throws if all are damaged, and names each damage", async () => {
    for (const step of [1, 2]) await save(step, { bytes: 3 << 20 });
    flipBytes(policyFile(1));
    rmSync(policyFile(2));
    const warnings: string[] = [];
    const failure = await latestCheckpoint(folder, (text) => warnings.push(text)).catch((error: RunError) => error);
    expect(failure).toBeInstanceOf(RunError);
    expect(failure).toMatchObject({ exitCode: 1, hint: expect.stringContaining("training.resume_mode=off") });
    const text = (failure as RunError).message;
    expect(text).toMatch(/step-000002 is damaged: policy\/weights\.safetensors is missing/);
    expect(text).toMatch(/step-000001 is damaged: the content of policy\/weights\.safetensors has changed/);
    expect(warnings).toEqual([]);
  });

  it("keeps what a running process is writing, and what another machine left", async () => {
    await save(1);
    for (const owner of [`${(await import("node:os")).hostname()}@${process.pid}`, "elsewhere@1"]) {
      mkdirSync(join(folder, `.tmp-step-000002@${owner}`));
    }
    expect((await latestCheckpoint(folder))?.step).toBe(1);
    expect(names().filter((name) => name.startsWith("."))).toHaveLength(2);
    await save(2); // Saving requires the run folder's lock, so nobody else can be writing.
    expect(names()).toEqual(["step-000001", "step-000002"]);
  });
});

describe("readCheckpoint", () => {
  it("explains why a path is not a checkpoint", async () => {
    await save(1);
    await expect(readCheckpoint(root)).rejects.toThrow(/is not a checkpoint: checkpoint\.json is missing/);
    await expect(readCheckpoint(policyFile(1))).rejects.toThrow(/is not a checkpoint/);
    const file = manifestOf(1);
    edit(1, '"format":1', '"format":2');
    await expect(readCheckpoint(join(folder, "step-000001"))).rejects.toThrow(/newer version.*format is 2/);
    writeFileSync(file, "{}");
    await expect(readCheckpoint(join(folder, "step-000001"))).rejects.toThrow(UserError);
    expect(existsSync(file)).toBe(true);
  });
});
