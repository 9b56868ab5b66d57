/** Opens the loggers that a configuration names, and those of the run folder. */
import { basename, join } from "node:path";
import type { Config } from "../../config/schema.ts";
import { consoleSubscriber } from "../../tracking/console/console.ts";
import type { RunEvent, Subscriber } from "../../tracking/events.ts";
import { type ClientName, sidecarLogger } from "../../tracking/loggers/sidecar-logger.ts";
import { tensorboardSubscriber } from "../../tracking/loggers/tensorboard.ts";
import { openPng, plotsSubscriber } from "../../tracking/plots/plots.ts";
import { type RunFolder, runFilesSubscriber } from "../../tracking/run-folder/run-folder.ts";
import type { Waiting } from "../rollouts/rollouts.ts";

export interface LoggerContext {
  config: Config;
  storedConfig: Readonly<Record<string, unknown>>;
  /** Undefined if nothing is kept. */
  folder: RunFolder | undefined;
  waitingFor: () => Waiting[];
  emit: (event: RunEvent) => void;
  warn: (text: string) => void;
  /** Where the console writes. */
  out: NodeJS.WriteStream;
}

type Logger = Config["rllm"]["trainer"]["logger"][number];

const open: Record<Logger, (context: LoggerContext) => Promise<Subscriber | undefined>> = {
  console: async ({ waitingFor, out }) => consoleSubscriber({ waitingFor, out }),
  tensorboard: async ({ config, folder }) =>
    folder && tensorboardSubscriber(config.rllm.trainer.tensorboard_dir ?? join(folder.path, "tensorboard")),
  wandb: (context) => openClient("wandb", context),
  mlflow: (context) => openClient("mlflow", context),
  trackio: (context) => openClient("trackio", context),
};

async function openClient(
  client: ClientName,
  { config, storedConfig, folder, warn }: LoggerContext,
): Promise<Subscriber | undefined> {
  if (!folder) return undefined;
  const { startSidecar, clientInstallCommand } = await import("../../tracking/loggers/start-sidecar.ts");
  return sidecarLogger({
    client,
    start: () => startSidecar(client, join(folder.path, `${client}.log`)),
    installCommand: clientInstallCommand(client),
    entity: config.rllm.trainer.wandb_entity,
    project: config.rllm.trainer.project_name,
    name: config.rllm.trainer.experiment_name,
    id: basename(folder.path),
    config: storedConfig,
    directory: folder.path,
    onWarning: warn,
  });
}

/** @throws UserError if a logger cannot start */
export async function openLoggers(context: LoggerContext): Promise<Subscriber[]> {
  const { config, folder } = context;
  const { logger, val_only, plot_every, plot_dir } = config.rllm.trainer;
  const opened: Subscriber[] = folder ? [runFilesSubscriber(folder)] : [];
  if (folder && !val_only && plot_every > 0) {
    const directory = plot_dir ?? join(folder.path, "plots");
    opened.push(
      plotsSubscriber({ directory, every: plot_every, toPng: await openPng(context.warn), emit: context.emit }),
    );
  }
  try {
    // A measurement has no curves.
    for (const name of new Set(val_only ? logger.filter((one) => one === "console") : logger)) {
      const subscriber = await open[name](context);
      if (subscriber) opened.push(subscriber);
    }
  } catch (error) {
    for (const subscriber of opened) await subscriber.close();
    throw error;
  }
  return opened;
}
