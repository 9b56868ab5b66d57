import { describe, expect, it } from "vitest";
import { threadEnvironment, usableCores } from "./cores.ts";

describe("threadEnvironment", () => {
  const quiet = { cores: 4, busy: 0.2, average: 0.5 };
  it.each([
    ["a quiet machine", 0, quiet, {}, "4", "active"],
    ["work that has just ended", 0, { ...quiet, average: 3 }, {}, "4", "active"],
    ["another program at work", 0, { ...quiet, busy: 2 }, {}, "4", "passive"],
    ["a machine that was shared all minute", 0, { ...quiet, average: 6 }, {}, "4", "passive"],
    ["more threads than cores", 8, quiet, {}, "8", "passive"],
    ["the user's policy", 0, quiet, { OMP_WAIT_POLICY: "passive" }, "4", "passive"],
    ["the user's threads", 0, quiet, { OMP_NUM_THREADS: "2" }, "2", "active"],
    ["the configuration over the environment", 3, quiet, { OMP_NUM_THREADS: "2" }, "3", "active"],
  ])("%s", (_what, threads, load, environment, count, policy) => {
    expect(threadEnvironment(threads, load, environment)).toEqual({ OMP_NUM_THREADS: count, OMP_WAIT_POLICY: policy });
  });

  it("finds at least one core", () => expect(usableCores()).toBeGreaterThanOrEqual(1));
});
