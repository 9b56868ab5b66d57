/** `hone export`: a checkpoint as files of the ecosystem. */
import { existsSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { adapterSpec, openEngine } from "../backends/open-engine.ts";
import { UserError } from "../errors.ts";
import { removeLeftovers } from "../temporary-names.ts";
import { openCheckpoint } from "../trainer/open-checkpoint.ts";
import { showStatus } from "./show-status.ts";

export async function exportCommand(path: string, folder: string, options: { as: string }): Promise<void> {
  const { as } = options;
  if (as !== "adapter" && as !== "merged") {
    throw new UserError(`--as ${as} is neither adapter nor merged`, { hint: "use --as adapter or --as merged" });
  }
  if (existsSync(folder)) {
    throw new UserError(`${folder} exists already`, { hint: "name a folder that does not exist yet" });
  }
  if (existsSync(dirname(resolve(folder)))) removeLeftovers(dirname(resolve(folder)));
  const checkpoint = await openCheckpoint(path);
  if (as === "adapter" && checkpoint.config.model.lora_rank === 0) {
    throw new UserError(`${checkpoint.folder} trained all weights: there is no adapter to export`, {
      hint: "add --as merged",
    });
  }
  const status = showStatus();
  const engine = await openEngine(checkpoint.config, { onStatus: status.say });
  try {
    const policy = await engine.createPolicy({ adapter: adapterSpec(checkpoint.config) });
    await policy.loadState(join(checkpoint.folder, "policy"), { optimizer: false });
    await policy.export(resolve(folder), as);
    status.end();
    process.stdout.write(`${as} of step ${checkpoint.step} written to ${folder}\n`);
  } finally {
    status.end();
    await engine.close();
  }
}
