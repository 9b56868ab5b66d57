import { mkdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterEach, expect, test, vi } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { defaultCache } from "./database.ts";

const root = temporaryFolder("cache");
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

function cacheWith(environment: Record<string, string>) {
  for (const [name, value] of Object.entries(environment)) vi.stubEnv(name, value);
  const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  return { cache: defaultCache(), lines: write.mock.calls.map(([text]) => String(text)) };
}

test("the index is in the user's cache", () => {
  const expected = join(root, "hone", "view");
  expect(cacheWith({ XDG_CACHE_HOME: root })).toEqual({ cache: expected, lines: [] });
  expect(cacheWith({ XDG_CACHE_HOME: "", HOME: join(root, "home") }).cache).toBe(
    join(root, "home", ".cache", "hone", "view"),
  );
});

test("a home that cannot be written: the index is in a temporary folder of this user", () => {
  const file = join(root, "file");
  writeFileSync(file, "");
  const temporary = join(root, "tmp");
  mkdirSync(temporary);
  const environment = { XDG_CACHE_HOME: join(file, "cache"), TMPDIR: temporary };
  const { cache, lines } = cacheWith(environment);
  expect(cache).toMatch(/hone-view-\w+$/);
  expect(lines).toEqual([expect.stringContaining(`the viewer's index is in ${cache}: ENOTDIR`)]);
  expect(statSync(cache).mode & 0o777).toBe(0o700);
  expect(cacheWith(environment).cache).toBe(cache);
  rmSync(cache, { recursive: true });
  // Another user has made it readable to all.
  mkdirSync(cache, { mode: 0o755 });
  expect(cacheWith(environment).cache).not.toBe(cache);
});
