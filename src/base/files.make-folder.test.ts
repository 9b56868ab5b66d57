import { mkdirSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { makeFolder } from "./files.ts";

const root = temporaryFolder("make-folder");

test("makes parents, and accepts a folder that exists", () => {
  const path = join(root, "a/b/c");
  for (let round = 0; round < 2; round++) makeFolder(path, 0o700);
  expect([path, join(root, "a")].map((folder) => statSync(folder).mode & 0o777)).toEqual([0o700, 0o700]);
});

test("a file in the way is an error", () => {
  writeFileSync(join(root, "file"), "");
  expect(() => makeFolder(join(root, "file"))).toThrow("EEXIST");
  expect(() => makeFolder(join(root, "file/below"))).toThrow("ENOTDIR");
});

test.runIf(process.platform === "linux")(
  "throws instead of hanging below /proc, where folders cannot be created",
  () => {
    expect(() => makeFolder("/proc/hone/run")).toThrow(/ENOENT|EACCES|EPERM|EROFS/);
    mkdirSync(join(root, "still-alive"));
  },
);
