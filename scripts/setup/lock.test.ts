import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, utimesSync, writeFileSync } from "node:fs";
import { hostname } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { beforeEach, describe, expect, it } from "vitest";
import { testFolder } from "../../src/temporary-folder.fixture.ts";
import { lockHolder, withLock } from "./lock.mjs";

let file: string;
const deadPid = spawnSync(process.execPath, ["-e", ""]).pid;

beforeEach(() => {
  file = join(testFolder("lock"), "lock");
});

describe("withLock", () => {
  it("holds the lock during the task and releases it afterwards, even if the task fails", async () => {
    expect(await withLock(file, async () => lockHolder(file)?.pid)).toBe(process.pid);
    await expect(withLock(file, () => Promise.reject(new Error("broken")))).rejects.toThrow("broken");
    expect(existsSync(file)).toBe(false);
  });

  it("lets one task run at a time", async () => {
    let inside = 0;
    let most = 0;
    const task = async () => {
      most = Math.max(most, ++inside);
      await sleep(20);
      inside--;
    };
    await Promise.all([withLock(file, task), withLock(file, task), withLock(file, task)]);
    expect(most).toBe(1);
  });

  it("takes over the lock of a process that is gone", async () => {
    writeFileSync(file, `${deadPid} ${hostname()}`);
    expect(await withLock(file, async () => readFileSync(file, "utf8"))).toBe(`${process.pid} ${hostname()}`);
  });
});

describe("lockHolder", () => {
  const old = new Date(Date.now() - 120_000);
  it.each([
    ["none", null, undefined, null],
    ["a live process", `${process.pid} ${hostname()}`, undefined, { pid: process.pid }],
    ["a live process that does not renew it: another took the number", `${process.pid} ${hostname()}`, old, null],
    ["a process of another machine that shares the folder", `${deadPid} elsewhere`, undefined, { pid: deadPid }],
    ["a process of another machine that does not renew it", `${deadPid} elsewhere`, old, null],
    ["a lock being written", "", undefined, { pid: 0 }],
    ["a lock never written", "", old, null],
  ])("%s", (_what, content, time, holder) => {
    if (content !== null) writeFileSync(file, String(content));
    if (time !== undefined) utimesSync(file, time, time);
    expect(lockHolder(file)).toEqual(holder);
  });
});
