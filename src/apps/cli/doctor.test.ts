import { expect, test } from "vitest";
import { parseGpus, parseLinks } from "./doctor.ts";

test("reads names and memory", () => {
  const GiB = 2 ** 30;
  expect(parseGpus("NVIDIA H100 80GB HBM3, 81079, 81559\nNVIDIA L4, 1024, 2048\n")).toEqual([
    { name: "NVIDIA H100 80GB HBM3", free: 81079 * 2 ** 20, total: 81559 * 2 ** 20 },
    { name: "NVIDIA L4", free: GiB, total: 2 * GiB },
  ]);
  expect(parseGpus("")).toEqual([]);
});

const matrix = `\tGPU0\tGPU1\tGPU2\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tSYS\tPIX\t0-23
GPU1\tNV18\t X \tSYS\tNODE\t0-23
GPU2\tSYS\tSYS\t X \tSYS\t24-47
NIC0\tPIX\tNODE\tSYS\t X

Legend:
  X    = Self`;

test.each([
  [1, []],
  [2, ["NV18"]],
  [3, ["NV18", "SYS"]],
])("the links among the first %d GPUs", (count, links) => expect(parseLinks(matrix, count)).toEqual(links));
