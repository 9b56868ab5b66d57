/** The verl engine: learners that use verl's worker groups on Ray through a Python driver. Servers sample. */
import { dirname, join, resolve } from "node:path";
import { memoryStore } from "../../images/media-store.ts";
import { verlEnvironment } from "../../python/find.ts";
import { prepareEnvironment } from "../../python/prepare.ts";
import { connect } from "../channel/connection.ts";
import { createWorkerLearner } from "../channel/learner.ts";
import { workerImages } from "../channel/media.ts";
import { imagesOf, modelInfo, type WorkerModel, workerStats } from "../channel/reports.ts";
import { sendOnce } from "../channel/send-batch.ts";
import type { LearningEngine } from "../engine.ts";
import { requireCreatable } from "../learner-spec.ts";
import { modelFolder } from "../local/model-folder.ts";
import { serverPackages } from "../local/server-packages.ts";
import type { WeightSource } from "../servers/weights/source-sampler.ts";
import { capabilities } from "./capabilities.ts";
import { startDriver } from "./driver-process.ts";
import { compareValues, type WorkerValues } from "./expected-values.ts";
import { nativeLoss } from "./native-loss.ts";
import { type VerlEngineOptions, withModel } from "./options.ts";

export interface VerlEngine extends LearningEngine {
  /** Addresses and weights of verl's rollout servers, if they sample. */
  rollouts?: { urls: string[]; source: WeightSource };
}

/**
 * @throws UserError when the model or the configuration cannot be used, or a Ray cluster does not answer
 * @throws RunError when the set-up or the driver fails
 */
export async function openVerlEngine(options: VerlEngineOptions): Promise<VerlEngine> {
  const { logFile, onStatus = () => {}, warn = () => {}, media: store = memoryStore() } = options.hooks;
  onStatus("preparing the model");
  const model = await modelFolder(options.name);
  onStatus("preparing the environment of verl");
  const python = await prepareEnvironment(verlEnvironment());
  onStatus("starting the verl driver");
  const packages = options.rollouts && (await serverPackages(model));
  const driver = await startDriver(python, options, logFile, packages);
  const connection = connect(driver);
  const request = async (op: string, fields: Record<string, unknown> = {}) => {
    const answer = connection.request(op, fields, {}, ({ header }) => {
      if (header.event === "status") onStatus(String(header.text));
    }).answer;
    return (await answer).header;
  };
  try {
    const header = await request("load", {
      model,
      name: options.name,
      config: withModel(options.config, model),
      ray: options.ray,
      gpu: options.usesGpu,
      rollouts: options.rollouts !== undefined,
      logs: resolve(logFile === undefined ? "ray-logs" : join(dirname(logFile), "ray")),
    });
    for (const text of adaptations(header.adapted as Adapted[])) warn(text);
    const rollouts = options.rollouts && (await openRollouts(request));
    const found = header.model as WorkerModel;
    // The policy, its reference and the critic compute on the same sequences.
    const computing = { native: nativeLoss, send: sendOnce(connection) };
    const { placeholder, reason } = imagesOf(found);
    const sends = options.rollouts !== "sglang";
    const imagesReason = placeholder && !sends ? "Hone does not send images to verl's SGLang servers so far" : reason;
    return {
      capabilities,
      model: modelInfo(options.name, found),
      versions: header.versions as Record<string, string>,
      ...(rollouts ? { rollouts } : {}),
      ...(placeholder && sends ? { images: workerImages(connection, store, placeholder) } : {}),
      ...(imagesReason === undefined ? {} : { imagesReason }),
      async createPolicy(spec) {
        return { learner: (await createWorkerLearner(connection, store, spec, computing)).learner };
      },
      async createLearner(spec) {
        requireCreatable(capabilities, spec);
        return (await createWorkerLearner(connection, store, spec, computing)).learner;
      },
      async examine() {
        const held = await request("readback", { paths: [...options.expected.keys()] });
        return [compareValues(options.expected, held as unknown as WorkerValues)];
      },
      stats: () => workerStats(connection),
      waitingFor: connection.waitingFor,
      died: driver.ended,
      close: connection.close,
    };
  } catch (error) {
    await connection.close();
    throw error;
  }
}

async function openRollouts(
  request: (op: string, fields?: Record<string, unknown>) => Promise<Record<string, unknown>>,
): Promise<VerlEngine["rollouts"] & object> {
  const { addresses } = await request("open_rollouts");
  return {
    urls: (addresses as string[]).map((address) => `http://${address}`),
    source: {
      name: "verl's checkpoint engine",
      endRequests: async () => void (await request("abort_rollouts")),
      sleep: async () => void (await request("sleep_rollouts")),
      update: async (version) => void (await request("update_rollouts", { version })),
    },
  };
}

/** A value that was changed because verl cannot use it on this machine. */
interface Adapted {
  path: string;
  from: unknown;
  to: unknown;
  reason: string;
}

/** One line per reason, because the actor, the reference and the critic have the same settings. */
function adaptations(adapted: readonly Adapted[]): string[] {
  const changes = (reason: string) =>
    adapted
      .filter((one) => one.reason === reason)
      .map(({ path, from, to }) => `${path} from ${JSON.stringify(from)} to ${JSON.stringify(to)}`);
  return [...new Set(adapted.map(({ reason }) => reason))].map(
    (reason) => `verl's settings changed, because ${reason}: ${changes(reason).join(", ")}`,
  );
}
