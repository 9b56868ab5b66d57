/**
 * Hone's own Tinker service without a port, in front of the local engine, for a run that names no service. It ends with
 * its engine, so whole checkpoints are moved out of it into the run's folders.
 */
import { existsSync } from "node:fs";
import { cp, mkdir, rm } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import type { EngineHooks } from "../../backends/backend.ts";
import type { Engine } from "../../backends/engine.ts";
import { composeEngine } from "../../backends/engine-parts.ts";
import { openLocalEngine } from "../../backends/local/engine.ts";
import { localEngineOptions } from "../../backends/local/options.ts";
import { openTinkerEngine, tinkerEngineOptions } from "../../backends/tinker/engine.ts";
import { formatTinkerPath, parseTinkerPath } from "../../backends/tinker/handshake.ts";
import { type StateTransfer, stateFile } from "../../backends/tinker/learner.ts";
import { createClosers } from "../../base/closers.ts";
import { UserError } from "../../base/errors.ts";
import { temporaryFolder } from "../../base/files.ts";
import type { Config } from "../../config/schema.ts";
import { openService } from "./server.ts";
import { checkpointRecord, type Store } from "./store.ts";

/** How often the service drops weights that are no longer sampled from. */
const sweepMs = 30_000;

export async function openOwnTinkerEngine(
  config: Config,
  hooks: Pick<EngineHooks, "logFile" | "media" | "onStatus">,
): Promise<Engine> {
  const closers = createClosers();
  try {
    const local = await openLocalEngine(localEngineOptions(config, hooks));
    closers.add(local.close);
    const stateFolder = await emptyFolder(hooks.logFile);
    closers.add(() => rm(stateFolder, { recursive: true, force: true }));
    const { name } = config.model;
    const running = await openService({ engines: [{ names: [name], engine: local }], stateFolder });
    closers.add(running.close);
    const timer = setInterval(() => {
      running.sweep().catch((error: unknown) => hooks.onStatus?.(`tidying up the Tinker service failed: ${error}`));
    }, sweepMs).unref();
    closers.add(() => clearInterval(timer));
    const address = { baseUrl: "http://in-process", apiKey: "tml-local" };
    const engine = await openTinkerEngine({
      ...tinkerEngineOptions(config, address, hooks),
      fetch: async (url, init) => running.app.request(url, init),
      states: stateTransfer(running.service.context.store, name),
    });
    const service = { stats: local.stats, waitingFor: local.waitingFor, close: closers.close };
    return composeEngine({ trainer: engine, versions: local.versions, programs: [service] });
  } catch (error) {
    return await closers.abandon(error);
  }
}

/** A folder in the run's folder, on the same disk as its checkpoints. Removes what a killed run left there. */
async function emptyFolder(logFile: string | undefined): Promise<string> {
  if (logFile === undefined) return temporaryFolder("hone-tinker-");
  const folder = join(dirname(logFile), "tinker");
  await rm(folder, { recursive: true, force: true });
  await mkdir(folder, { recursive: true });
  return folder;
}

/** A state consists of the local engine's files and `tinker.json`, which holds its name in the service. */
function stateTransfer(store: Store, baseModel: string): StateTransfer {
  return {
    async moveOut(path, folder) {
      const { data } = store.checkpoints.get(path)!;
      await cp(store.folderOf(data), folder, { recursive: true });
      store.deleteCheckpoint(path);
    },
    async copyBack(folder, path, adapter) {
      if (!existsSync(join(folder, "policy.json"))) {
        throw new UserError(`${path} is stored by another Tinker service, not by Hone's own service in this process`, {
          hint: "Use the service that saved it: set tinker_base_url=http://..., or TINKER_API_KEY for the hosted service.",
        });
      }
      const { data, folder: target } = store.newData();
      await cp(folder, target, { recursive: true, filter: (file) => basename(file) !== stateFile });
      const record = checkpointRecord.parse({
        ...parseTinkerPath(path),
        kind: "weights",
        createdAt: new Date().toISOString(),
        sizeBytes: store.sizeOf(data),
        baseModel,
        adapter: { ...adapter, targets: [...adapter.targets] },
        data,
      });
      store.saveCheckpoint(record);
      return async () => store.deleteCheckpoint(formatTinkerPath(record));
    },
  };
}
