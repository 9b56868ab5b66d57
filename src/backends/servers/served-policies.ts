/** Samples an engine's policies on inference servers that run already, while the engine trains them. */
import { rmSync } from "node:fs";
import { join } from "node:path";
import { RunError, UserError } from "../../errors.ts";
import type { Learner, LearningEngine, Policy, PolicySpec, Published, SamplingPart } from "../engine.ts";
import { folderForWeights, publishingFolders } from "../published-folders.ts";
import { allServers } from "./control/all-servers.ts";
import { type Control, type ServedModel, tokenizerProbe } from "./control/control.ts";
import { sglangControl } from "./control/sglang-control.ts";
import { vllmControl } from "./control/vllm-control.ts";
import type { Dialect } from "./dialects/dialect.ts";
import { sglang } from "./dialects/sglang.ts";
import { vllmDialect } from "./dialects/vllm-dialect.ts";
import { explainedBy } from "./process/own-server.ts";
import type { ServerProcess } from "./process/server-process.ts";
import type { Server } from "./server.ts";
import { type GroupOptions, openServers } from "./server-group.ts";
import { sampleFrom } from "./server-sampler.ts";
import { adapterSampler } from "./weights/adapter-sampler.ts";
import { probeServers } from "./weights/parity-probe.ts";
import { sourceSampler, type WeightSource } from "./weights/source-sampler.ts";
import type { SyncedSampler } from "./weights/synced-sampler.ts";
import { weightsSampler } from "./weights/weights-sampler.ts";

export interface ServerOptions extends GroupOptions {
  /** Default "vllm". */
  kind?: "vllm" | "sglang";
  /** For published weights, removed on close; the server can read it by the same path. */
  folder: string;
  /** Gives the servers their weights, in place of the folder. */
  source?: WeightSource | undefined;
  /** The servers share the trainer's GPU, and free its memory while the trainer uses it. */
  sleeps?: boolean;
  /** Processes of the only server, if all weights are broadcast to it; undefined: they go through files. */
  broadcastTo?: number | undefined;
  /** The trainer's tokenizer, without special tokens at its ends. */
  encode(text: string): ArrayLike<number>;
  /** The server, if Hone started it: its end is reported as the cause of failures. */
  own?: Pick<ServerProcess, "answers" | "died">;
}

/** The parts of an engine that servers sample for. */
interface Trainer extends Pick<LearningEngine, "model" | "createPolicy"> {
  /** Undefined: requests with images are refused. */
  images?: LearningEngine["images"] | undefined;
}

/** The servers are asked when a policy is created, not by learners alone. */
export function servedPolicies(trainer: Trainer, options: ServerOptions): SamplingPart {
  const group = openServers(options);
  const { kind = "vllm", source } = options;
  const control = allServers(group, kind === "vllm" ? vllmControl : sglangControl);
  const urls = group.servers.map(({ url }) => url).join(", ");
  const samplers: SyncedSampler[] = [];
  const folders = new Set<string>();
  let retriesSeen = 0;
  const probeTokens = Int32Array.from(options.encode(tokenizerProbe));

  /** @throws UserError if the servers do not have the trainer's tokenizer */
  async function readModel(): Promise<ServedModel> {
    const served = await control.model();
    group.requireAll();
    const theirs = await control.tokenize(served.name, tokenizerProbe);
    if (probeTokens.join() === theirs.join()) return served;
    throw new UserError(`the tokenizer of the inference server at ${urls} differs from that of ${trainer.model.name}`, {
      hint: `serve the model of this run: ${trainer.model.directory}`,
    });
  }

  async function createPolicy(spec: PolicySpec): Promise<Policy> {
    const served = await readModel();
    const dialects: Dialect[] =
      kind === "sglang" ? [sglang] : [...new Set(await Promise.all(group.servers.map(vllmDialect)))];
    const paths = dialects.map(({ path }) => path).join(", ");
    const { learner, sampler, update } = await openPolicy(spec, served, dialects);
    const servers = `${kind === "vllm" ? "vLLM" : "SGLang"} at ${urls} (${paths})${update && `, which ${update}`}`;
    const { maxLength } = served;
    return { learner, sampler: Object.assign(sampler, { servers }, maxLength === undefined ? {} : { maxLength }) };
  }

  /** @returns also how the servers get new weights, as a verb phrase */
  async function openPolicy(
    spec: PolicySpec,
    served: ServedModel,
    dialects: readonly Dialect[],
  ): Promise<Policy & { update: string }> {
    const { adapter } = spec;
    const { learner } = await trainer.createPolicy(spec);
    const base = { kind, model: served.name, images: trainer.images };
    const probes = probeServers(group, learner, { prompt: probeTokens }, options.onNote);
    if (source) {
      const sampler = sourceSampler(group, source, probes, { ...base, logprobs: "raw" });
      samplers.push(sampler);
      await sampler.load({ kind: "engine", version: 0, id: "" });
      return { learner, sampler, update: `gets weights by ${source.name}` };
    }
    if (adapter.kind === "none") return { learner, sampler: sampleFrom(group, { ...base, version: 0 }), update: "" };
    if (samplers.length === 0) await removeLeftAdapters(control, served.adapters, options.folder);
    const isAdapter = adapter.kind === "lora";
    const broadcastTo = isAdapter ? undefined : options.broadcastTo;
    const folder =
      isAdapter || broadcastTo
        ? options.folder
        : folderForWeights(options.folder, trainer.model, group.servers.every(isThisMachine));
    folders.add(folder);
    const publishing = broadcastTo
      ? await broadcasting(learner, control, broadcastTo)
      : publishingFolders(learner, isAdapter ? "adapter" : "weights", folder);
    const sampler = isAdapter
      ? adapterSampler(group, control, probes, { kind, images: trainer.images })
      : weightsSampler(group, control, probes, base);
    samplers.push(sampler);
    try {
      await sampler.load(await publishing.first());
    } catch (error) {
      if (broadcastTo || !(error instanceof RunError) || error.code !== "run_failed") throw error;
      throw new UserError(error.message, { hint: howToStart(kind, adapter, folder), cause: error });
    }
    if (options.sleeps) Object.assign(sampler, { sleep: control.sleep, wake: control.wake });
    const keepsWeights = isAdapter && dialects.some(({ abort }) => abort === undefined);
    const update = isAdapter ? "" : `gets all weights ${broadcastTo ? "by NCCL" : "through files"}`;
    return {
      learner: publishing.learner,
      sampler,
      update: keepsWeights ? "keeps a reply's weights until it ends" : update,
    };
  }

  return {
    createPolicy: options.own ? explainedBy(options.own, createPolicy) : createPolicy,
    async stats() {
      const { retries, working } = group;
      const servers = { "rollout/server_retries": retries - retriesSeen, "rollout/servers": working.length };
      retriesSeen = retries;
      return Object.assign(servers, ...samplers.map(({ metrics }) => metrics));
    },
    async close() {
      for (const sampler of samplers) await sampler.close();
      await group.close();
      for (const folder of folders) rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** Unloads and removes the adapters that a killed process of the run left at its server, and their folder. */
async function removeLeftAdapters(control: Control, left: { name: string; path: string }[], folder: string) {
  for (const { name, path } of left) if (path.startsWith(join(folder, "/"))) await control.unloadAdapter(name);
  rmSync(folder, { recursive: true, force: true });
}

/**
 * A learner that publishes all weights by broadcasts to the GPUs of an inference server.
 *
 * @param processes of the server
 * @throws RunError when they cannot form a group with the learner
 */
async function broadcasting(
  learner: Learner,
  control: Control,
  processes: number,
): Promise<{ learner: Learner; first(): Promise<Published> }> {
  const group = await learner.openGroup?.(1 + processes);
  if (group === undefined || control.joinGroup === undefined)
    throw new RunError("the trainer or the inference server does not support sending weights by NCCL");
  try {
    await Promise.all([control.joinGroup(group), group.join()]);
  } catch (error) {
    if (!(error instanceof RunError)) throw error;
    const hint = "to send weights through files instead, start vLLM yourself and name it with local.sampler.url";
    throw new RunError(`NCCL did not connect the trainer and the inference server: ${error.message}`, {
      hint,
      cause: error,
    });
  }
  const broadcast = ({ version }: { version: number }): Published => ({ kind: "collective", version, group });
  return {
    /** The weights before training. */
    first: async () => broadcast({ version: 0 }),
    learner: {
      ...learner,
      publish: async () => broadcast(await learner.publish()),
      loadState: async (dir, options) => broadcast(await learner.loadState(dir, options)),
    },
  };
}

const isThisMachine = ({ url }: Server) => ["localhost", "127.0.0.1", "[::1]"].includes(new URL(url).hostname);

function howToStart(kind: "vllm" | "sglang", adapter: PolicySpec["adapter"], folder: string): string {
  const flags = {
    vllm: {
      lora: "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 3 --max-lora-rank",
      full: "VLLM_SERVER_DEV_MODE=1",
    },
    sglang: { lora: "--enable-lora --max-loras-per-batch 3 --lora-target-modules all --max-lora-rank", full: "" },
  };
  const name = kind === "vllm" ? "vLLM" : "SGLang";
  const needed = adapter.kind === "lora" ? `${flags[kind].lora} ${adapter.rank}` : flags[kind].full;
  return `start ${name}${needed && ` with ${needed}`}, on a machine that can read ${folder}`;
}
