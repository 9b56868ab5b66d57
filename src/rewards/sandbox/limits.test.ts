import { expect, test } from "vitest";
import { readHierarchies } from "./limits.ts";

const mount = (point: string, kind: string, options: string) =>
  `30 23 0:26 / ${point} rw,relatime shared:9 - ${kind} ${kind} rw,${options}`;

test.each<[string, string[], string[], ReturnType<typeof readHierarchies>]>([
  [
    "version 2",
    [mount("/", "ext4", ""), mount("/sys/fs/cgroup", "cgroup2", "nsdelegate")],
    ["0::/user.slice/session-1.scope"],
    [{ kind: "unified", mount: "/sys/fs/cgroup", place: "/sys/fs/cgroup/user.slice/session-1.scope" }],
  ],
  [
    "version 1",
    [mount("/sys/fs/cgroup/pids", "cgroup", "pids"), mount("/sys/fs/cgroup/memory", "cgroup", "memory")],
    ["8:pids:/", "4:memory:/a:b"],
    [
      { kind: "pids", mount: "/sys/fs/cgroup/pids", place: "/sys/fs/cgroup/pids/" },
      { kind: "memory", mount: "/sys/fs/cgroup/memory", place: "/sys/fs/cgroup/memory/a:b" },
    ],
  ],
  [
    "version 1 with controllers that share a hierarchy",
    [mount("/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"), mount("/sys/fs/cgroup/cpuset", "cgroup", "cpuset")],
    ["4:cpu,cpuacct:/user", "3:cpuset:/"],
    [{ kind: "cpu", mount: "/sys/fs/cgroup/cpu,cpuacct", place: "/sys/fs/cgroup/cpu,cpuacct/user" }],
  ],
  ["none", [mount("/", "ext4", "")], ["0::/"], []],
  ["nothing mounted of its own", [mount("/sys/fs/cgroup", "cgroup", "memory")], ["1:cpuset:/"], []],
])("cgroups: %s", (_name, mounts, membership, found) => {
  expect(readHierarchies(mounts.join("\n"), membership.join("\n"))).toEqual(found);
});
