import { describe, expect, it } from "vitest";
import { threadEnvironment, usableCores } from "./cores.ts";

describe("threadEnvironment", () => {
  const waiting = { OMP_WAIT_POLICY: "passive", GOMP_SPINCOUNT: "3000" };
  it.each([
    ["one thread a core", 0, {}, { OMP_NUM_THREADS: "4", ...waiting }],
    ["the user's policy", 0, { OMP_WAIT_POLICY: "active" }, { OMP_NUM_THREADS: "4" }],
    ["the user's spinning", 0, { GOMP_SPINCOUNT: "5" }, { OMP_NUM_THREADS: "4" }],
    ["the user's threads", 0, { OMP_NUM_THREADS: "2" }, { OMP_NUM_THREADS: "2", ...waiting }],
    ["the configuration over the environment", 3, { OMP_NUM_THREADS: "2" }, { OMP_NUM_THREADS: "3", ...waiting }],
  ])("%s", (_what, threads, environment, expected) => {
    expect(threadEnvironment(threads, 4, environment)).toEqual(expected);
  });

  it("finds at least one core", () => expect(usableCores()).toBeGreaterThanOrEqual(1));
});
