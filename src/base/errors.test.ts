import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";
import { EngineDied } from "../backends/engine-parts.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { readCheckpoint } from "../trainer/checkpoints.ts";
import { openToy, toy } from "../trainer/toy-experiment.fixture.ts";
import { train } from "../trainer/train.ts";
import {
  describeSystemFailure,
  HoneError,
  isThrownByHone,
  RunError,
  readable,
  UserError,
  userFrames,
} from "./errors.ts";

test("UserError and RunError are unrelated; errors of another copy of the package are recognized", async () => {
  // @ts-expect-error: the query makes it a separate module
  const other = (await import("./errors.ts?copy")) as typeof import("./errors.ts");
  expect(other.UserError).not.toBe(UserError);
  const kinds = (error: unknown) => [HoneError, UserError, RunError, EngineDied].map((kind) => error instanceof kind);
  expect(kinds(new UserError("a"))).toEqual([true, true, false, false]);
  expect(kinds(new other.UserError("a"))).toEqual([true, true, false, false]);
  expect(kinds(new RunError("a"))).toEqual([true, false, true, false]);
  expect(kinds(new other.RunError("a"))).toEqual([true, false, true, false]);
  expect(kinds(new EngineDied("a"))).toEqual([true, false, true, true]);
  for (const no of [new Error("a"), null, undefined, "a", {}]) expect(kinds(no)).toEqual([false, false, false, false]);
});

test("each error has a code and an exit code", () => {
  const described = [new UserError("a"), new RunError("a"), new EngineDied("a"), new UserError("a", { code: "b" })];
  expect(described.map(({ code, exitCode }) => [code, exitCode])).toEqual([
    ["user_error", 2],
    ["run_failed", 1],
    ["engine_died", 1],
    ["b", 2],
  ]);
});

const hone = `    at step (${fileURLToPath(new URL("../agents/workflows.ts", import.meta.url))}:3:1)`;
const user = "    at reward (/home/me/train.ts:7:3)";
const others = [
  "    at async Promise.all (index 0)",
  "    at run (node:internal/process:1:1)",
  "    at p (/home/me/node_modules/p/a.js:1:1)",
];
const stack = (...frames: string[]) => ["Error: no", ...frames].join("\n");

test("returns the frames of the user's files, or Hone's if there are none", () => {
  expect(userFrames(stack(hone, user, ...others))).toBe(user);
  expect(userFrames(stack(hone, ...others))).toBe(hone);
  expect([userFrames(stack(...others)), userFrames(undefined)]).toEqual(["", ""]);
  expect(userFrames(stack(...Array.from({ length: 9 }, () => user))).split("\n").length).toBe(8);
});

test("the error is attributed to the code that threw, not to its caller", () => {
  expect([stack(hone, user), stack(user, hone), stack(others[1]!, hone), undefined].map(isThrownByHone)).toEqual([
    true,
    false,
    true,
    false,
  ]);
});

const root = temporaryFolder("system-errors");

/** A run folder in which this name is a folder (or a file) although Hone writes a file (or a folder) there. */
function spoiled(name: string, kind: "file" | "folder"): string {
  const run = join(root, `${kind}-${name.replaceAll("/", "-")}`);
  mkdirSync(run);
  if (name !== "config.yaml") writeFileSync(join(run, "config.yaml"), "");
  if (kind === "folder") mkdirSync(join(run, name), { recursive: true });
  else writeFileSync(join(run, name), "");
  return run;
}

describe("an unusable run folder is reported as one sentence with its path, without a stack trace", () => {
  test.each([
    ["below a file", () => join(spoiled("file", "file"), "file/run"), "ENOTDIR"],
    ["with a name too long", () => join(root, "n".repeat(300)), "ENAMETOOLONG"],
    ["with a folder as metrics.jsonl", () => spoiled("metrics.jsonl", "folder"), "EISDIR"],
    ["with a folder as config.yaml", () => spoiled("config.yaml", "folder"), "EISDIR"],
    ["with a folder as log.txt", () => spoiled("log.txt", "folder"), "EISDIR"],
    ["with a folder as .lock", () => spoiled(".lock", "folder"), "EISDIR"],
    ["with a folder as checkpoint.json", () => spoiled("checkpoints/step-000002/checkpoint.json", "folder"), "EISDIR"],
    ["with a file as checkpoints", () => spoiled("checkpoints", "file"), "EEXIST"],
    ["with a file as episodes", () => spoiled("episodes", "file"), "EEXIST"],
  ])("%s", async (_, make, code) => {
    const overrides = [`rllm.trainer.run_dir=${JSON.stringify(make())}`];
    const error = readable(await train(toy(), { engine: openToy(), overrides }).catch((thrown: unknown) => thrown));
    expect(error).toBeInstanceOf(UserError);
    const { message, hint } = error as UserError;
    expect([message, hint]).toEqual([expect.stringMatching(`^${root}.*\\(${code}\\)$`), expect.any(String)]);
    expect(message.length).toBeLessThan(500);
  });
});

describe("a checkpoint.json with other content is reported as damaged", () => {
  const content = { format: 1, step: 2, state: {}, metrics: {} };
  test.each<[string, unknown, string]>([
    ["null", null, "is not a JSON object"],
    ["a list", [1], "is not a JSON object"],
    ["a null entry", { ...content, files: { "policy/a": null } }, "does not describe policy/a"],
    ["an entry without a size", { ...content, files: { "policy/a": {} } }, "does not describe policy/a"],
    ["state that is null", { ...content, state: null, files: {} }, "has no step, state"],
  ])("%s", async (name, value, message) => {
    const folder = join(root, `checkpoint-${name}`);
    mkdirSync(folder);
    writeFileSync(join(folder, "checkpoint.json"), JSON.stringify(value));
    await expect(readCheckpoint(folder)).rejects.toThrow(message);
    await expect(readCheckpoint(folder)).rejects.toBeInstanceOf(UserError);
  });
});

test("failures that a valid run can have exit with 1, the user's mistakes with 2", () => {
  const exitCode = (code: string) => describeSystemFailure({ code, path: "/a" })?.exitCode;
  expect(["ENOSPC", "EDQUOT", "EROFS", "EFBIG", "EMFILE", "EIO"].map(exitCode)).toEqual([1, 1, 1, 1, 1, 1]);
  expect(["EACCES", "EPERM", "ENAMETOOLONG", "ENOTDIR", "EISDIR"].map(exitCode)).toEqual([2, 2, 2, 2, 2]);
  expect(describeSystemFailure({ code: "constructor" })).toBeUndefined();
  expect(describeSystemFailure({ code: "ENOSPC", path: "/a" })).toBeInstanceOf(RunError);
});
