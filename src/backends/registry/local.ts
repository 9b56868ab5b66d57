/** The local engine: a Python worker on this machine, which inference servers may sample for. */
import { join } from "node:path";
import { temporaryFolder } from "../../files/temporary-names.ts";
import { composeEngine } from "../compose-engine.ts";
import type { BackendDescriptor } from "../descriptor.ts";
import { capabilities, capabilitiesWith, shardedCapabilities } from "../local/capabilities.ts";
import { localEngineOptions, serverKey, serversOf } from "../local/options.ts";
import { broadcasts, ownServerRules, refusalOfImages, sleepsWhileTraining, startOwnServer } from "./own-server.ts";

export const local: BackendDescriptor = {
  capabilities({ local: { sampler, processes } }) {
    const trainer = processes > 1 ? shardedCapabilities : capabilities;
    return sampler.type === "own" ? trainer : capabilitiesWith(sampler.type, trainer);
  },
  rules: ownServerRules,
  check({ config }) {
    if (serversOf(config)) serverKey(config);
  },
  async open({ config }, { folder, warn, ...hooks }) {
    const { openLocalEngine } = await import("../local/engine.ts");
    const options = localEngineOptions(config, hooks);
    const trainer = await openLocalEngine(options);
    const { type: kind, timeout: timeoutSeconds, tensor_parallel } = config.local.sampler;
    const published = folder === undefined ? temporaryFolder("hone-published-") : join(folder, "published");
    try {
      if (kind === "own") {
        if (config.local.processes === 1) return trainer;
        const { workerPolicies } = await import("../local/own-sampler.ts");
        return composeEngine({ trainer, samplers: await workerPolicies(trainer, { ...options, folder: published }) });
      }
      const [{ servedPolicies }, { openTokenizer }] = await Promise.all([
        import("../servers/served-policies.ts"),
        import("../../chat/tokens/tokenizer.ts"),
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
      const own = await startOwnServer(config, { model, nccl, images }, hooks);
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
