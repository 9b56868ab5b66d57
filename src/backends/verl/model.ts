/** What verl loads: a Hugging Face folder. */
import { UserError } from "../../errors.ts";
import { modelSource } from "../local/models.ts";

/** @throws UserError when the model is not one that verl can load */
export function verlModel(name: string): string {
  const source = modelSource(name);
  if (source.kind === "hub") {
    throw new UserError(`model.name=${name}: verl loads a folder, which its workers can read`, {
      hint: "download the model and name its folder, e.g. model.name=./my-model",
    });
  }
  if (source.kind === "path" && !source.path.endsWith(".gguf")) return source.path;
  throw new UserError(`model.name=${name}: verl does not load GGUF files`, {
    hint: "name a Hugging Face folder; the local backend keeps converted GGUF models as folders in .hone/models",
  });
}
