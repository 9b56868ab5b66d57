/** The verl engine: verl's worker groups on Ray, behind a Python driver. It has learners; a server samples. */
import { dirname, join, resolve } from "node:path";
import { prepareEnvironment } from "../../python/prepare.ts";
import { connect } from "../channel/connection.ts";
import { createWorkerLearner } from "../channel/learner.ts";
import { modelInfo, type WorkerModel, workerStats } from "../channel/reports.ts";
import type { LearningEngine } from "../engine.ts";
import { requireCreatable } from "../learner-spec.ts";
import { modelFolder } from "../local/model-folder.ts";
import { capabilities } from "./capabilities.ts";
import { startDriver } from "./driver-process.ts";
import { type VerlEngineOptions, withModel } from "./options.ts";
import { compareHeld, type Held } from "./promised.ts";

/**
 * @throws UserError when the model or the configuration cannot be used, or a Ray cluster does not answer
 * @throws RunError when the set-up or the driver fails
 */
export async function openVerlEngine(options: VerlEngineOptions): Promise<LearningEngine> {
  const { logFile, onStatus = () => {}, warn = () => {} } = options.hooks;
  onStatus("preparing the model");
  const model = await modelFolder(options.name);
  onStatus("preparing the environment of verl");
  const python = await prepareEnvironment("verl");
  onStatus("starting the verl driver");
  const driver = await startDriver(python, options.ranks, logFile);
  const connection = connect(driver);
  try {
    const { header } = await connection.request(
      "load",
      {
        model,
        name: options.name,
        config: withModel(options.config, model),
        ray: options.ray,
        logs: resolve(logFile === undefined ? "ray-logs" : join(dirname(logFile), "ray")),
      },
      {},
      ({ header }) => {
        if (header.event === "status") onStatus(String(header.text));
      },
    ).answer;
    for (const text of adaptations(header.adapted as Adapted[])) warn(text);
    return {
      capabilities,
      model: modelInfo(options.name, header.model as WorkerModel),
      versions: header.versions as Record<string, string>,
      imagesReason: "images are not passed on to verl's workers yet",
      async createPolicy(spec) {
        return { learner: (await createWorkerLearner(connection, spec)).learner };
      },
      async createLearner(spec) {
        requireCreatable(capabilities, spec);
        return (await createWorkerLearner(connection, spec)).learner;
      },
      async examine() {
        const { header } = await connection.request("readback", { paths: [...options.promised.keys()] }).answer;
        return [compareHeld(options.promised, header as unknown as Held)];
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

/** A value that verl cannot use on this machine. */
interface Adapted {
  path: string;
  from: unknown;
  to: unknown;
  reason: string;
}

/** A line for each reason, since the actor, the reference and the critic have the same settings. */
function adaptations(adapted: readonly Adapted[]): string[] {
  const changes = (reason: string) =>
    adapted
      .filter((one) => one.reason === reason)
      .map(({ path, from, to }) => `${path} from ${JSON.stringify(from)} to ${JSON.stringify(to)}`);
  return [...new Set(adapted.map(({ reason }) => reason))].map(
    (reason) => `verl's settings changed, because ${reason}: ${changes(reason).join(", ")}`,
  );
}
