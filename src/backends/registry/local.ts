/** The local engine: a Python worker on this machine, which inference servers may sample for. */
import { join } from "node:path";
import { temporaryFolder } from "../../files/temporary-names.ts";
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
    const own = await openLocalEngine(options);
    const { type: kind } = config.local.sampler;
    const published = folder === undefined ? temporaryFolder("hone-published-") : join(folder, "published");
    if (kind === "own") {
      if (config.local.processes === 1) return own;
      const { withOwnSampler } = await import("../local/own-sampler.ts");
      return withOwnSampler(own, { ...options, folder: published }).catch(async (error: unknown) => {
        await own.close();
        throw error;
      });
    }
    const { images, ...rest } = own;
    const refusal = images && kind === "sglang" ? refusalOfImages(own.model.directory) : undefined;
    const engine = {
      ...rest,
      ...(refusal === undefined ? images && { images } : { imagesReason: refusal }),
      capabilities: capabilitiesWith(kind, own.capabilities),
    };
    const [{ withServer }, { ownServer }, { openTokenizer }] = await Promise.all([
      import("../servers/with-server.ts"),
      import("../servers/process/own-server.ts"),
      import("../../chat/tokens/tokenizer.ts"),
    ]);
    const serving = {
      onNote: warn,
      timeoutSeconds: config.local.sampler.timeout,
      folder: published,
      encode: (text: string) => openTokenizer(engine.model.directory).encode(text),
    };
    const servers = serversOf(config);
    if (servers !== undefined) return withServer(engine, { ...serving, ...servers, apiKey: serverKey(config) });
    try {
      const server = await startOwnServer(config, engine, hooks);
      const { url, apiKey } = server;
      const sleeps = sleepsWhileTraining(config);
      const broadcastTo = broadcasts(config, engine) ? config.local.sampler.tensor_parallel : undefined;
      return ownServer(withServer(engine, { ...serving, kind, urls: [url], apiKey, sleeps, broadcastTo }), server);
    } catch (error) {
      await engine.close();
      throw error;
    }
  },
};
