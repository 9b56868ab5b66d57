import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { hostname, tmpdir } from "node:os";
import { basename, join } from "node:path";
import { beforeEach, describe, expect, it } from "vitest";
import { testFolder } from "../temporary-folder.fixture.ts";
import {
  isGone,
  isKeyOwnerGone,
  isOwnerGone,
  ownerKey,
  ownerMark,
  removeLeftovers,
  temporaryFolder,
  temporaryName,
  thisProcess,
} from "./files.ts";

const { pid: deadPid } = spawnSync(process.execPath, ["-e", ""]);
const here = hostname();
const linux = existsSync("/proc/self/stat");

let folder: string;
beforeEach(() => {
  folder = testFolder("temporary-names");
});

describe("isOwnerGone", () => {
  it.each([
    ["this process", basename(temporaryName("weights")), false],
    ["a dead process", `.weights.@${here}@${deadPid}@0.partial`, true],
    ["a dead process with a start time", `folder-@${here}@${deadPid}@01234567-aBcDe1`, true],
    ["a dead process of an older version", `.tmp-step-000001@${here}@${deadPid}`, true],
    ["this process, unknown start", `.weights.@${here}@${process.pid}@0.partial`, false],
    ["a process of another machine", `.weights.@elsewhere@${deadPid}@0.partial`, false],
    ["nobody", ".weights.partial", false],
    ["an e-mail address", "mail@example.org", false],
  ])("of %s", (_who, name, gone) => expect(isOwnerGone(name)).toBe(gone));

  it.runIf(linux)("knows a reused process number by its start time", () => {
    expect(isOwnerGone(`.weights.@${here}@${process.pid}@01234567.partial`)).toBe(true);
    expect(isGone(thisProcess())).toBe(false);
    expect(isGone({ ...thisProcess(), started: "another boot/1" })).toBe(true);
  });
});

it("isKeyOwnerGone knows the owner of a name without special characters", () => {
  const [machine, , started] = ownerKey.split("-");
  expect(ownerKey).toMatch(/^[0-9a-f-]+$/);
  expect(isKeyOwnerGone(`${ownerKey}-0011__env`)).toBe(false);
  expect(isKeyOwnerGone(`${machine}-${deadPid}-0-0011__env`)).toBe(true);
  expect(isKeyOwnerGone(`${machine}-${deadPid}-01234567__env`)).toBe(true);
  // Another machine's, and a name with another meaning.
  expect(isKeyOwnerGone(`01234567-${deadPid}-${started}-0011__env`)).toBe(false);
  expect(isKeyOwnerGone(`${machine}__env`)).toBe(false);
  if (linux) expect(isKeyOwnerGone(`${machine}-${process.pid}-01234567-0011`)).toBe(true);
});

describe("leftovers of a killed process are removed at the next start", () => {
  it("in a folder", () => {
    const keep = [`.a.${ownerMark}.partial`, `.a.@elsewhere@${deadPid}@0.partial`, `a.@${here}@${deadPid}@0.txt`];
    const leave = [`.a.@${here}@${deadPid}@0.partial`, `.b.@${here}@${deadPid}@0.partial`];
    for (const name of [...keep, leave[0]!]) writeFileSync(join(folder, name), "");
    mkdirSync(join(folder, leave[1]!, "inside"), { recursive: true });
    removeLeftovers(folder);
    expect(readdirSync(folder).sort()).toEqual([...keep].sort());
    removeLeftovers(folder, () => true);
    expect(readdirSync(folder)).toEqual([keep[2]]);
  });

  it("in the system's temporary folder, once for each prefix", () => {
    const prefix = `hone-test-${process.pid}-`;
    const left = join(tmpdir(), `${prefix}@${here}@${deadPid}@0-abc`);
    mkdirSync(left);
    const made = temporaryFolder(prefix);
    expect([existsSync(left), basename(made).startsWith(`${prefix}${ownerMark}-`)]).toEqual([false, true]);
    rmSync(made, { recursive: true });
  });
});
