import { expect, test } from "vitest";
import { describeIsolation } from "./sandbox.ts";

test("describes what is enforced and what is not", () => {
  const all = { network: true, files: true, processes: true, secrets: true, lifetime: true, resources: true };
  expect(describeIsolation({ level: "namespaces", ...all, memory: "cgroup" })).toBe(
    "level namespaces: programs cannot reach the network, other files, other processes, variables and memory of other processes; " +
      "memory is limited by the kernel",
  );
  const few = { ...all, network: false, files: false, processes: false, lifetime: false };
  expect(describeIsolation({ level: "process", ...few, memory: "watched" })).toBe(
    "level process: programs cannot reach variables and memory of other processes; not protected: the network, other files, " +
      "other processes; memory is checked ten times a second; a process that leaves its group survives",
  );
});
