import { afterEach, expect, test, vi } from "vitest";
import { isSpareCopy, torchrunOverrides } from "./script.ts";

const torchrun = { TORCHELASTIC_RUN_ID: "none", WORLD_SIZE: "2", LOCAL_WORLD_SIZE: "2" };

afterEach(() => void vi.restoreAllMocks());

test.each([
  [{}, false],
  [{ RANK: "1", WORLD_SIZE: "2" }, false],
  [{ ...torchrun, RANK: "0" }, false],
  [{ ...torchrun, RANK: "1" }, true],
])("%j: a copy without work: %s", (environment, isSpare) => {
  const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  expect(isSpareCopy(environment)).toBe(isSpare);
  expect(write).toHaveBeenCalledTimes(isSpare ? 1 : 0);
});

test("ranks on several machines are refused", () => {
  const environment = { ...torchrun, RANK: "0", WORLD_SIZE: "16", LOCAL_WORLD_SIZE: "8" };
  expect(() => isSpareCopy(environment)).toThrow("torchrun started 16 ranks, 8 of them on this machine");
});

test("torchrun sets the number of processes; a bare WORLD_SIZE does not", () => {
  expect(torchrunOverrides(torchrun)).toEqual(["local.processes=2"]);
  expect(torchrunOverrides({ WORLD_SIZE: "2" })).toEqual([]);
});
