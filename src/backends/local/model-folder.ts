import { statSync } from "node:fs";
import { openLocalEngine } from "./engine.ts";
import { resolveModel } from "./models.ts";

/**
 * The folder with a model's configuration, tokenizer and weights in Hugging Face's format, downloaded or converted on first use.
 *
 * @param name an alias, a Hugging Face directory, a .gguf file or a hub id
 * @throws UserError when the model cannot be used
 */
export async function modelFolder(name: string): Promise<string> {
  const path = await resolveModel(name);
  if (statSync(path, { throwIfNoEntry: false })?.isDirectory()) return path;
  // The worker downloads and converts.
  const engine = await openLocalEngine({ model: name });
  await engine.close();
  return engine.model.directory;
}
