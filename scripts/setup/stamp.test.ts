import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, it } from "vitest";
import { testFolder } from "../../src/temporary-folder.fixture.ts";
import { hashFiles, readStamp, replaceFolder, writeStamp } from "./stamp.mjs";

let root: string;
const at = (...parts: string[]): string => join(root, ...parts);
const make = (text: string) => async (partial: string) => {
  mkdirSync(partial);
  writeFileSync(join(partial, "file"), text);
};

beforeEach(() => {
  root = testFolder("stamp");
});

describe("stamps", () => {
  it("are read back; missing and incomplete stamps are ignored", () => {
    expect(readStamp(at("stamp"))).toBeNull();
    writeStamp(at("stamp"), { lock: "abc" });
    expect(readStamp(at("stamp"))).toEqual({ lock: "abc" });
    writeFileSync(at("stamp"), '{"lock": "ab');
    expect(readStamp(at("stamp"))).toBeNull();
  });

  it("differ with a file's content, its name, and where one file ends", () => {
    const hash = (files: [string, string][]) => {
      for (const [name, text] of files) writeFileSync(at(name), text);
      return hashFiles(files.map(([name]) => at(name)));
    };
    const hashes = [
      hash([["a", "1"]]),
      hash([["a", "2"]]),
      hash([["b", "1"]]),
      hash([
        ["a", "1"],
        ["b", ""],
      ]),
      hash([
        ["a", ""],
        ["b", "1"],
      ]),
    ];
    expect(new Set(hashes).size).toBe(hashes.length);
    expect(hash([["a", "1"]])).toBe(hashes[0]);
  });
});

describe("replaceFolder", () => {
  it("creates a folder, replaces it, and leaves no other files", async () => {
    await replaceFolder(at("folder"), make("old"));
    await replaceFolder(at("folder"), make("new"), at("scratch"));
    expect(readFileSync(at("folder", "file"), "utf8")).toBe("new");
    expect([readdirSync(root).sort(), readdirSync(at("scratch"))]).toEqual([["folder", "scratch"], []]);
  });

  it("keeps the old folder if creating a new one fails, and removes the remains at the next attempt", async () => {
    await replaceFolder(at("folder"), make("old"));
    const broken = replaceFolder(at("folder"), async (partial) => {
      mkdirSync(partial);
      throw new Error("no space");
    });
    await expect(broken).rejects.toThrow("no space");
    mkdirSync(at("folder.old-1"));
    expect(readFileSync(at("folder", "file"), "utf8")).toBe("old");
    await replaceFolder(at("folder"), make("new"));
    expect(readdirSync(root)).toEqual(["folder"]);
  });

  it("creates the folder after an interruption between the two renames", async () => {
    mkdirSync(at("folder.old-1"));
    mkdirSync(at("folder.partial-1"));
    await replaceFolder(at("folder"), make("new"));
    expect(existsSync(at("folder", "file"))).toBe(true);
    expect(readdirSync(root)).toEqual(["folder"]);
  });
});
