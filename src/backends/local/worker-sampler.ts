/** A separate worker that samples for a learner with several processes: it loads the folders that the learner publishes. */
import { rmSync } from "node:fs";
import { UserError } from "../../base/errors.ts";
import { type MediaStore, memoryStore } from "../../images/images.ts";
import type { Engine, Policy, PolicySpec, Sampler, SamplingPart } from "../engine.ts";
import { folderForWeights, publishingFolders } from "../engine-parts.ts";
import { type Connection, workerStats } from "../worker/connection.ts";
import { openWorker, sample } from "./engine.ts";
import type { LocalEngineOptions } from "./options.ts";

/** @param folder for published weights, removed on close */
export async function workerPolicies(
  trainer: Pick<Engine, "model" | "images" | "createPolicy">,
  { folder, ...options }: LocalEngineOptions & { folder: string },
): Promise<SamplingPart> {
  const { connection, died } = await openWorker({ ...options, processes: 1 });
  const folders = new Set<string>();

  async function createPolicy(spec: PolicySpec): Promise<Policy> {
    const { learner } = await trainer.createPolicy(spec);
    const sampler = await folderSampler(connection, spec, trainer.images?.store ?? memoryStore());
    const close = async () => {
      await Promise.all([learner.close(), sampler.close()]);
    };
    if (spec.adapter.kind === "none") return { sampler, learner: { ...learner, close } };
    const isAdapter = spec.adapter.kind === "lora";
    const published = isAdapter ? folder : folderForWeights(folder, trainer.model, true);
    folders.add(published);
    const publishing = publishingFolders(learner, isAdapter ? "adapter" : "weights", published);
    return { sampler, learner: { ...publishing.learner, close } };
  }

  return {
    createPolicy,
    stats: () => workerStats(connection),
    waitingFor: connection.waitingFor,
    died,
    async close() {
      await connection.close();
      for (const each of folders) rmSync(each, { recursive: true, force: true });
    },
  };
}

/** Before the first load it has the weights of the base model, as the learner does. */
async function folderSampler(connection: Connection, { adapter }: PolicySpec, store: MediaStore): Promise<Sampler> {
  const loaded = adapter.kind === "full" ? { kind: "loaded" } : adapter;
  const created = await connection.request("create_policy", { adapter: loaded }).answer;
  const policy = created.header.policy as number;
  let version = 0;
  return {
    get version() {
      return version;
    },
    logprobs: "raw",
    sample: (requests, options = {}) => sample(connection, store, policy, requests, options),
    async load(published) {
      if (published.kind !== "adapter" && published.kind !== "weights") {
        throw new UserError(`this sampler cannot load weights of the kind "${published.kind}"`);
      }
      const { path: dir } = published;
      await connection.request("load_published", { policy, dir, version: published.version }).answer;
      // The worker has copied them.
      rmSync(dir, { recursive: true, force: true });
      version = published.version;
    },
    async close() {
      await connection.request("close_policy", { policy }).answer;
    },
  };
}
