/** What `hone doctor` says of the processes that will train a model, before it is loaded. */

import { statSync } from "node:fs";
import { availableParallelism, freemem } from "node:os";
import type { Finding } from "../backends/engine.ts";
import { trainingProcesses } from "../backends/local/machine.ts";
import { type Gpu, listGpus, listLinks } from "../backends/local/memory/gpus.ts";
import { memoryPerRank } from "../backends/local/memory/memory-per-rank.ts";
import { readModelShapes } from "../backends/local/memory/model-shapes.ts";
import { modelSource } from "../backends/local/models.ts";
import { adapterSpec } from "../backends/registry/open-engine.ts";
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

/** The memory that each process needs; undefined while the model's files are not there. */
export async function describeNeeded(config: Config, folder: string | undefined): Promise<Finding | undefined> {
  const shapes = folder === undefined ? undefined : readModelShapes(folder);
  if (shapes === undefined) return undefined;
  const { local, model } = config;
  const gpus = await gpusOf(config);
  const onGpu = gpus.length > 0;
  const adapter = adapterSpec(config);
  const weightBytes = local.dtype === "bfloat16" || (local.dtype === "auto" && onGpu) ? 2 : 4;
  const needed = memoryPerRank(shapes, {
    processes: trainingProcesses(config),
    sharding: local.sharding,
    offloadParameters: local.offload_parameters,
    offloadOptimizer: local.offload_optimizer,
    weightBytes,
    loraRank: model.lora_rank,
    targets: adapter.kind === "lora" ? adapter.targets : [],
    gradientCheckpointing: local.gradient_checkpointing === true,
    // The least that the worker chooses by itself.
    microBatchTokens: local.micro_batch_tokens || (onGpu ? 1024 : 512),
    chunkSize: local.chunk_size,
  });
  const { offloaded, ...parts } = needed;
  const all = Object.values(parts).reduce((sum, bytes) => sum + bytes, 0);
  const named = Object.entries(parts).filter(([, bytes]) => bytes > 0);
  const list = named.map(([name, bytes]) => `${name} ${formatBytes(bytes)}`).join(", ");
  const elsewhere = offloaded > 0 ? `; ${formatBytes(offloaded)} of it in CPU memory` : "";
  const free = onGpu ? Math.min(...gpus.map((gpu) => gpu.free)) : freemem() / trainingProcesses(config);
  const fits = (onGpu ? all - offloaded : all) <= free;
  const detail = `each process about ${formatBytes(all)}: ${list}${elsewhere}; ${formatBytes(free)} free for each`;
  if (fits) return { name: "needed", detail };
  return {
    name: "needed",
    detail,
    fix: "add local.gradient_checkpointing=true, use more processes, or a smaller model",
  };
}

/** The folder of the model if it is on this machine as one. */
export function modelFolder({ model }: Config): string | undefined {
  const source = modelSource(model.name);
  return source.kind === "path" && statSync(source.path).isDirectory() ? source.path : undefined;
}

async function gpusOf(config: Config): Promise<Gpu[]> {
  const { device } = config.local;
  return device === "cpu" || device === "mps" ? [] : (await listGpus()).slice(0, trainingProcesses(config));
}
