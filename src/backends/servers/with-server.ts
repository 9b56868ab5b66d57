/** An engine whose policies are sampled by inference servers that run already, while the engine trains them. */
import { rmSync } from "node:fs";
import { RunError, UserError } from "../../errors.ts";
import type { Engine, Learner, LearningEngine, ModelInfo, Policy, PolicySpec } from "../engine.ts";
import { folderForWeights, publishingFolders } from "../published-folders.ts";
import { allServers } from "./control/all-servers.ts";
import type { ServedModel } from "./control/control.ts";
import { sglangControl } from "./control/sglang-control.ts";
import { vllmControl } from "./control/vllm-control.ts";
import type { Dialect } from "./dialects/dialect.ts";
import { sglang } from "./dialects/sglang.ts";
import { vllmDialect } from "./dialects/vllm-dialect.ts";
import type { Server } from "./server.ts";
import { type GroupOptions, openServers } from "./server-group.ts";
import { type ServedModelOptions, sampleFrom } from "./server-sampler.ts";
import { adapterSampler } from "./weights/adapter-sampler.ts";
import { broadcasting } from "./weights/broadcasting.ts";
import { removeLeftAdapters } from "./weights/left-adapters.ts";
import { probeServers } from "./weights/probe-servers.ts";
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
}

/** Text whose tokens differ between nearly all tokenizers. */
const tokenizerProbe =
  "Hello  world!\n\tWhat is 12345 + 678.90? ÄÖ ñ 你好 🙂 def f(x):\n    return x**2 # <b>don't</b>";

/** The server is asked when a policy is created, not by learners alone. */
export function withServer(engine: LearningEngine, options: ServerOptions): Engine {
  const group = openServers(options);
  const { kind = "vllm" } = options;
  const control = allServers(group, kind === "vllm" ? vllmControl : sglangControl);
  const urls = group.servers.map(({ url }) => url).join(", ");
  const samplers: SyncedSampler[] = [];
  const folders = new Set<string>();
  let retriesSeen = 0;
  let model: ModelInfo = engine.model;

  const probeTokens = Int32Array.from(options.encode(tokenizerProbe));

  async function compare(): Promise<ServedModel> {
    const served = await control.model();
    group.requireAll();
    const theirs = await control.tokenize(served.name, tokenizerProbe);
    if (probeTokens.join() !== theirs.join()) {
      throw new UserError(
        `the tokenizer of the inference server at ${urls} differs from that of ${engine.model.name}`,
        {
          hint: `serve the model of this run: ${engine.model.directory}`,
        },
      );
    }
    model = {
      ...engine.model,
      maxLength: Math.min(engine.model.maxLength, served.maxLength ?? Number.POSITIVE_INFINITY),
      sampledBy: `${kind === "vllm" ? "vLLM" : "SGLang"} at ${urls} (${(await dialects()).map(({ path }) => path).join(", ")})`,
    };
    return served;
  }

  const dialects = async (): Promise<Dialect[]> =>
    kind === "sglang" ? [sglang] : [...new Set(await Promise.all(group.servers.map(vllmDialect)))];

  /** For the run's first line. */
  const say = (what: string) => {
    model = { ...model, sampledBy: `${model.sampledBy}, which ${what}` };
  };

  async function createPolicy(spec: PolicySpec): Promise<Policy> {
    const { adapter } = spec;
    const served = await compare();
    const policy = await engine.createPolicy(spec);
    const base = { kind, model: served.name, images: engine.images };
    if (options.source) return { ...policy, sampler: await fromSource(options.source, policy.learner, base) };
    if (adapter.kind === "none") return { ...policy, sampler: sampleFrom(group, { ...base, version: 0 }) };
    if (samplers.length === 0) await removeLeftAdapters(control, served.adapters, options.folder);
    const isAdapter = adapter.kind === "lora";
    const broadcastTo = isAdapter ? undefined : options.broadcastTo;
    const folder =
      isAdapter || broadcastTo
        ? options.folder
        : folderForWeights(options.folder, engine.model, group.servers.every(isThisMachine));
    folders.add(folder);
    const { learner, first } = broadcastTo
      ? await broadcasting(policy.learner, control, broadcastTo)
      : publishingFolders(policy.learner, isAdapter ? "adapter" : "weights", folder);
    if (!isAdapter) say(`gets all weights ${broadcastTo ? "by NCCL" : "through files"}`);
    else if ((await dialects()).some(({ abort }) => abort === undefined)) say("keeps a reply's weights until it ends");
    const probes = probeServers(group, learner, { prompt: probeTokens });
    const sampler = isAdapter
      ? adapterSampler(group, control, probes, { kind, images: engine.images })
      : weightsSampler(group, control, probes, base);
    samplers.push(sampler);
    try {
      await sampler.load(await first());
    } catch (error) {
      if (broadcastTo || !(error instanceof RunError) || error.code !== "run_failed") throw error;
      throw new UserError(error.message, { hint: howToStart(kind, adapter, folder), cause: error });
    }
    if (options.sleeps) Object.assign(sampler, { sleep: control.sleep, wake: control.wake });
    return { learner, sampler };
  }

  async function fromSource(
    source: WeightSource,
    learner: Learner,
    base: Pick<ServedModelOptions, "kind" | "model" | "images">,
  ) {
    const probes = probeServers(group, learner, { prompt: probeTokens });
    const sampler = sourceSampler(group, source, probes, { ...base, logprobs: "raw" });
    samplers.push(sampler);
    say(`gets weights by ${source.name}`);
    await sampler.load({ kind: "engine", version: 0, id: "" });
    return sampler;
  }

  return {
    ...engine,
    get model() {
      return { ...model, maxLength: Math.min(model.maxLength, engine.model.maxLength) };
    },
    createPolicy,
    async stats() {
      const { retries, working } = group;
      const servers = { "rollout/server_retries": retries - retriesSeen, "rollout/servers": working.length };
      retriesSeen = retries;
      return Object.assign(await engine.stats(), servers, ...samplers.map(({ metrics }) => metrics));
    },
    async close() {
      try {
        for (const sampler of samplers) await sampler.close();
        await group.close();
        for (const folder of folders) rmSync(folder, { recursive: true, force: true });
      } finally {
        await engine.close();
      }
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
