/** From the flags of a command that trains to the launch of its run. */
import type { Launch } from "../trainer/launch.ts";
import { printConfig } from "./print-config.ts";
import { spawnWithParent } from "./spawn-with-parent.ts";

export interface LaunchFlags {
  config?: string[];
  resume?: string;
  checkpoint?: string;
  from?: string;
  dryRun?: boolean;
  explain?: string | true;
  view?: boolean;
}

export function launchOf(overrides: readonly string[], flags: LaunchFlags): Launch {
  const { config: files = [], dryRun = false, explain, view, resume, checkpoint, from } = flags;
  const launch: Launch = { overrides, files, dryRun };
  if (explain !== undefined) launch.inspect = (composed, facts) => printConfig(composed, "yaml", explain, facts);
  if (view) launch.onBegin = viewBeside;
  if (resume !== undefined) launch.resume = resume;
  if (checkpoint !== undefined) launch.checkpoint = checkpoint;
  if (from !== undefined) launch.from = from;
  return launch;
}

/** Shows a run as a page while it trains: in a process of its own, which ends with this one and cannot harm the run. */
function viewBeside(folder: string): void {
  const main = process.argv[1]!;
  const viewer = spawnWithParent([main, "view", folder, "--host", "127.0.0.1"]);
  viewer.on("error", () => {});
  viewer.unref();
  viewer.channel?.unref();
}
