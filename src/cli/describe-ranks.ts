/** What `hone doctor` says of the processes that will train a model. */

import { availableParallelism } from "node:os";
import type { Finding } from "../backends/engine.ts";
import { type Gpu, listGpus, listLinks } from "../backends/local/gpus.ts";
import { trainingProcesses } from "../backends/local/machine.ts";
import type { Config } from "../config/schema.ts";
import { formatBytes } from "../files/durable-files.ts";

/** The devices of the processes and how they are connected. */
export async function describeRanks(config: Config): Promise<Finding[]> {
  const { sharding, sequence_parallel: together, device } = config.local;
  const processes = trainingProcesses(config);
  const groups = together === 1 ? "" : `, each sequence on ${together} of them`;
  const ranks = `${processes} processes with ${sharding}${groups}`;
  const gpus = await gpusOf(config);
  if (gpus.length === 0) {
    const cores = availableParallelism();
    const detail = `${ranks} on the CPU, connected by gloo; ${cores} ${cores === 1 ? "core" : "cores"} for all`;
    return [{ name: "ranks", detail, ...(cores < processes ? { fix: `use at most ${cores} processes` } : {}) }];
  }
  const links = (await listLinks(processes)).join(", ") || "unknown";
  const devices = gpus.map(({ name, free }, index) => `cuda:${index} ${name}, ${formatBytes(free)} free`);
  const found = { name: "devices", detail: `${devices.join("; ")}; links: ${links}` };
  const missing = gpus.length < processes || device.includes(":");
  return [
    { name: "ranks", detail: `${ranks}, connected by NCCL` },
    missing ? { ...found, fix: "use one process for each GPU, with local.device=auto or cuda" } : found,
  ];
}

async function gpusOf(config: Config): Promise<Gpu[]> {
  const { device } = config.local;
  return device === "cpu" || device === "mps" ? [] : (await listGpus()).slice(0, trainingProcesses(config));
}
