/** The subscribers that a configuration asks for, and the run folder's own. */
import type { Config } from "../config/schema.ts";
import { consoleSubscriber } from "../tracking/console.ts";
import type { Subscriber } from "../tracking/events.ts";
import { runFilesSubscriber } from "../tracking/run-files.ts";
import type { RunFolder } from "../tracking/run-folder.ts";
import type { Waiting } from "./run.ts";

type Logger = Config["rllm"]["trainer"]["logger"][number];
type Open = (config: Config, folder: RunFolder | undefined, waitingFor: () => Waiting[]) => Promise<Subscriber>;

const open: Record<Logger, Open> = {
  console: async (_config, _folder, waitingFor) => consoleSubscriber({ waitingFor }),
  tensorboard: async () => {
    throw new Error("pending");
  },
  wandb: async () => {
    throw new Error("pending");
  },
};

/** @throws UserError when a logger cannot start, before anything else of the run has */
export async function openLoggers(
  config: Config,
  folder: RunFolder | undefined,
  waitingFor: () => Waiting[],
): Promise<Subscriber[]> {
  const opened: Subscriber[] = folder ? [runFilesSubscriber(folder)] : [];
  for (const name of new Set(config.rllm.trainer.logger)) opened.push(await open[name](config, folder, waitingFor));
  return opened;
}
