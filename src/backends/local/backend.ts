/** The local engine: a Python worker on this machine, which inference servers may sample for. */
import { join } from "node:path";
import { temporaryFolder } from "../../base/files.ts";
import { installedPython } from "../../base/python.ts";
import type { Config } from "../../config/schema.ts";
import type { BackendDescriptor } from "../backend.ts";
import { adapterSpec, composeEngine } from "../engine-parts.ts";
import {
  broadcasts,
  refusalOfImages,
  serverShare,
  sleepsWhileTraining,
  startedServerRules,
} from "../servers/started-server.ts";
import { modelSource } from "./models.ts";
import {
  capabilities,
  capabilitiesWith,
  localEngineOptions,
  type MemoryPlan,
  samplerType,
  serverKey,
  serversOf,
  shardedCapabilities,
  trainingProcesses,
} from "./options.ts";

/** The longest sequence is a prompt with one reply; a conversation of several turns can be longer, up to training.max_length. */
function memoryPlan(config: Config, others: MemoryPlan["others"]): MemoryPlan {
  const { data, training, local } = config;
  return {
    adapter: adapterSpec(config),
    tokens: Math.min(training.max_length, data.max_prompt_length + data.max_response_length),
    rows: samplerType(config) === "own" ? local.max_sample_rows : 0,
    server_share: serverShare(config),
    others,
  };
}

function chosenServer(): string {
  const isInstalled = Boolean(process.env.HONE_VLLM_PYTHON) || installedPython("vllm") !== undefined;
  const cost = isInstalled ? "" : ", whose installation takes 11 GB of disk, once";
  return `vLLM samples, since the run uses an NVIDIA GPU${cost}; with local.sampler.type=own the engine samples itself`;
}

export const local: BackendDescriptor = {
  capabilities(config) {
    const trainer = trainingProcesses(config) > 1 ? shardedCapabilities : capabilities;
    const kind = samplerType(config);
    return kind === "own" ? trainer : capabilitiesWith(kind, trainer);
  },
  rules: startedServerRules,
  check({ config }) {
    modelSource(config.model.name);
    if (serversOf(config)) serverKey(config);
  },
  async open({ config }, { folder, warn, trains, ...hooks }) {
    const { openLocalEngine } = await import("./engine.ts");
    const options = localEngineOptions(config, hooks);
    const trainer = await openLocalEngine(trains ? { ...options, plan: memoryPlan(config, trains.others) } : options);
    const { timeout: timeoutSeconds, tensor_parallel } = config.local.sampler;
    const kind = samplerType(config);
    if (config.local.sampler.type === "auto" && kind === "vllm" && config.local.sampler.url === null)
      hooks.onStatus?.(chosenServer());
    const published = folder === undefined ? temporaryFolder("hone-published-") : join(folder, "published");
    try {
      if (kind === "own") {
        if (trainingProcesses(config) === 1) return trainer;
        const { workerPolicies } = await import("./worker-sampler.ts");
        return composeEngine({ trainer, samplers: await workerPolicies(trainer, { ...options, folder: published }) });
      }
      const [{ servedPolicies }, { openTokenizer }] = await Promise.all([
        import("../servers/policies.ts"),
        import("../../chat/tokenizer.ts"),
      ]);
      const { model, nccl, createPolicy } = trainer;
      const imagesReason = trainer.images && kind === "sglang" ? refusalOfImages(model.directory) : undefined;
      const images = imagesReason === undefined ? trainer.images : undefined;
      const serving = {
        onNote: warn,
        timeoutSeconds,
        folder: published,
        encode: (text: string) => openTokenizer(model.directory).encode(text),
      };
      const parts = { trainer, imagesReason, capabilities: capabilitiesWith(kind, trainer.capabilities) };
      const running = serversOf(config);
      if (running !== undefined) {
        const serverOptions = { ...serving, ...running, apiKey: serverKey(config) };
        return composeEngine({ ...parts, samplers: servedPolicies({ model, images, createPolicy }, serverOptions) });
      }
      const { startSamplingServer } = await import("../servers/start-servers.ts");
      const own = await startSamplingServer(config, { model, nccl, images }, hooks);
      const { url, apiKey, died, stop } = own;
      const sleeps = sleepsWhileTraining(config);
      const broadcastTo = broadcasts(config, trainer) ? tensor_parallel : undefined;
      const serverOptions = { ...serving, kind, urls: [url], apiKey, sleeps, broadcastTo, own };
      const samplers = servedPolicies({ model, images, createPolicy }, serverOptions);
      return composeEngine({ ...parts, samplers, programs: [{ died, close: stop }] });
    } catch (error) {
      await trainer.close();
      throw error;
    }
  },
};
