import { statSync } from "node:fs";
import { join } from "node:path";
import { preparePython } from "../../python/prepare.ts";
import { connect } from "../channel/connection.ts";
import { resolveModel } from "./models.ts";
import { startLocalWorker } from "./worker-process.ts";

/**
 * The folder with a model's configuration, tokenizer and weights in Hugging Face's format, downloaded or converted on first use.
 *
 * @param name an alias, a Hugging Face directory, a .gguf file or a hub id
 * @throws UserError when the model cannot be used
 */
export async function modelFolder(name: string): Promise<string> {
  const model = await resolveModel(name);
  if (statSync(model, { throwIfNoEntry: false })?.isDirectory()) return model;
  const { home, python } = await preparePython();
  const connection = connect(await startLocalWorker({ python, threads: 0 }));
  try {
    const request = { model, cache_dir: join(home, "models") };
    const { header } = await connection.request("find_model", request).answer;
    return header.directory as string;
  } finally {
    await connection.close();
  }
}
