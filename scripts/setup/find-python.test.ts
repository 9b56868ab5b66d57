import { chmodSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, it } from "vitest";
import { temporaryFolder } from "../../src/temporary-folder.fixture.ts";
import { findPython, pythonCandidates, suits } from "./find-python.mjs";

const folder = temporaryFolder("python");
/** A program that answers like a Python of that version, or fails as a version manager's shim does. */
function fake(name: string, version: string | null): string {
  const file = join(folder, name);
  const body =
    version === null
      ? "echo 'command not found in the selected version' >&2; exit 127"
      : `echo ${version}; echo ${file}`;
  writeFileSync(file, `#!/bin/sh\n${body}\n`);
  chmodSync(file, 0o755);
  return file;
}

describe("findPython", () => {
  const [shim, old, good, future] = [
    fake("shim", null),
    fake("old", "3.9.18"),
    fake("good", "3.12.1"),
    fake("future", "3.99.0"),
  ];

  it("returns the first that runs and has a supported version", async () => {
    expect(await findPython([join(folder, "none"), shim, old, future, good])).toEqual({
      executable: good,
      version: "3.12.1",
    });
  });

  it.each([
    [[shim, old, future], /old is 3\.9\.18, .*future is 3\.99\.0/],
    [[shim], /found: no Python/],
  ])("lists what it found and what to install", async (candidates, message) => {
    await expect(findPython(candidates)).rejects.toMatchObject({
      exitCode: 2,
      hint: expect.stringContaining("apt install python3"),
    });
    await expect(findPython(candidates)).rejects.toThrow(message);
  });

  it.each([
    ["3.10.14", false],
    ["3.11.0", true],
    ["3.14.2", true],
    ["3.15.0", false],
    ["2.7.18", false],
  ])("%s is supported: %s", (version, answer) => {
    expect(suits(version)).toBe(answer);
  });

  it("tries HONE_PYTHON first, then the newest", () => {
    expect(pythonCandidates({ HONE_PYTHON: "/opt/python" }).slice(0, 4)).toEqual([
      "/opt/python",
      "python3",
      "python3.14",
      "python3.13",
    ]);
    expect(pythonCandidates({})[0]).toBe("python3");
  });
});
