/** An engine whose policies are sampled by inference servers that run already, while the engine trains them. */
import { rmSync } from "node:fs";
import { RunError, UserError } from "../../errors.ts";
import type { Engine, ModelInfo, Policy, PolicySpec } from "../engine.ts";
import { publishingAdapters, removeLeftAdapters } from "./adapter-folders.ts";
import { type AdapterSampler, adapterSampler } from "./adapter-sampler.ts";
import { allServers } from "./all-servers.ts";
import type { ServedModel } from "./control.ts";
import { probeServers } from "./probe-servers.ts";
import { type GroupOptions, openServers } from "./server-group.ts";
import { sampleFrom } from "./server-sampler.ts";

export interface ServerOptions extends GroupOptions {
  /** For the published adapters, removed in the end; the server can read it by the same path. */
  folder: string;
  /** The trainer's tokenizer, without special tokens at its ends. */
  encode(text: string): ArrayLike<number>;
}

/** Text whose tokens differ between nearly all tokenizers. */
const tokenizerProbe =
  "Hello  world!\n\tWhat is 12345 + 678.90? ÄÖ ñ 你好 🙂 def f(x):\n    return x**2 # <b>don't</b>";

/** The server is asked when a policy is created, not by learners alone. */
export function withServer(engine: Engine, options: ServerOptions): Engine {
  const group = openServers(options);
  const control = allServers(group);
  const urls = group.servers.map(({ url }) => url).join(", ");
  const samplers: AdapterSampler[] = [];
  let retriesSeen = 0;
  let model: ModelInfo = engine.model;

  const probeTokens = Int32Array.from(options.encode(tokenizerProbe));

  async function compare(): Promise<ServedModel> {
    const served = await control.model();
    group.requireAll();
    const theirs = await control.tokenize(served.name, tokenizerProbe);
    if (probeTokens.join() !== theirs.join()) {
      throw new UserError(`the inference server at ${urls} has another tokenizer than ${engine.model.name}`, {
        hint: `serve the model of this run: ${engine.model.directory}`,
      });
    }
    model = {
      ...engine.model,
      maxLength: Math.min(engine.model.maxLength, served.maxLength ?? Number.POSITIVE_INFINITY),
    };
    return served;
  }

  async function createPolicy(spec: PolicySpec): Promise<Policy> {
    const { adapter } = spec;
    if (adapter.kind === "full") {
      throw new UserError(
        "model.lora_rank=0 trains all weights; an inference server can load only LoRA adapters so far",
        {
          hint: "model.lora_rank=32, or local.sampler.type=own",
        },
      );
    }
    const served = await compare();
    const policy = await engine.createPolicy(spec);
    if (adapter.kind === "none") return { ...policy, sampler: sampleFrom(group, { model: served.name, version: 0 }) };
    if (samplers.length === 0) await removeLeftAdapters(control, served.adapters, options.folder);
    const { learner, first } = publishingAdapters(policy.learner, options.folder);
    const sampler = adapterSampler(group, control, probeServers(group, learner, probeTokens));
    samplers.push(sampler);
    try {
      await sampler.load(await first());
    } catch (error) {
      if (!(error instanceof RunError) || error.code !== "run_failed") throw error;
      throw new UserError(error.message, {
        hint: `start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora --max-loras 3 --max-lora-rank ${adapter.rank}, on a machine that can read ${options.folder}`,
        cause: error,
      });
    }
    return { learner, sampler };
  }

  return {
    ...engine,
    get model() {
      return model;
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
        rmSync(options.folder, { recursive: true, force: true });
      } finally {
        await engine.close();
      }
    },
  };
}
