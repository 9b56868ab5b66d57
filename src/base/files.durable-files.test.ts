import { existsSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it } from "vitest";
import { testFolder } from "../temporary-folder.fixture.ts";
import { RunError } from "./errors.ts";
import { appendLine, temporaryName, writeWhole } from "./files.ts";

let folder: string;
beforeEach(() => {
  folder = testFolder("durable");
});

/** On Linux: a file whose disk is always full. */
const full = existsSync("/dev/full");

describe("appendLine", () => {
  it("adds lines", () => {
    const file = join(folder, "a");
    appendLine(file, "one");
    appendLine(file, "zwölf");
    expect(readFileSync(file, "utf8")).toBe("one\nzwölf\n");
  });

  it.runIf(full)("reports that the disk is full, the file, and how much was needed", () => {
    const file = join(folder, "metrics.jsonl");
    symlinkSync("/dev/full", file);
    const error = (() => {
      try {
        appendLine(file, "x".repeat(1999));
      } catch (caught) {
        return caught as RunError;
      }
    })();
    expect(error).toBeInstanceOf(RunError);
    expect(error?.message).toBe(`the disk is full: ${file} needs 2.0 kB more. The unfinished write was undone`);
    expect(error?.hint).toContain(folder);
  });
});

describe("writeWhole", () => {
  it("replaces a file at once and leaves nothing else", () => {
    const file = join(folder, "a");
    writeWhole(file, ["old"]);
    writeWhole(file, ["new ", "content"]);
    expect(readFileSync(file, "utf8")).toBe("new content");
    expect(readdirSync(folder)).toEqual(["a"]);
  });

  it("keeps the old content when the new one fails midway", () => {
    const file = join(folder, "a");
    writeFileSync(file, "old");
    const pieces = function* () {
      yield "half";
      throw new Error("no more");
    };
    expect(() => writeWhole(file, pieces())).toThrow("no more");
    expect(readFileSync(file, "utf8")).toBe("old");
    expect(readdirSync(folder)).toEqual(["a"]);
  });

  it.runIf(full)("keeps the old content when the disk is full", () => {
    const file = join(folder, "a");
    writeFileSync(file, "old");
    symlinkSync("/dev/full", temporaryName(file));
    expect(() => writeWhole(file, ["new"])).toThrow(/the disk is full: .* needs 3 bytes/);
    expect(readFileSync(file, "utf8")).toBe("old");
    expect(readdirSync(folder)).toEqual(["a"]);
  });
});
