/** Names of checkpoints: `tinker://{run}/{kind}/{name}`. */
import { UserError } from "../errors.ts";

export const checkpointKinds = {
  weights: "training",
  sampler_weights: "sampler",
  external_weights: "external",
} as const;
export type PathKind = keyof typeof checkpointKinds;

export interface TinkerPath {
  /** The saved model, `{session}:train:{number}`. */
  run: string;
  kind: PathKind;
  name: string;
}

export const formatTinkerPath = ({ run, kind, name }: TinkerPath): string => `tinker://${run}/${kind}/${name}`;

/** Whether the text names a checkpoint that a Tinker service holds. */
export const isTinkerPath = (text: string): boolean => text.startsWith("tinker://");

/** @throws UserError when the text is not such a path */
export function parseTinkerPath(path: string): TinkerPath {
  const parts = isTinkerPath(path) ? path.slice("tinker://".length).split("/") : [];
  const [run, kind, name] = parts;
  if (parts.length !== 3 || !run || !name || !isPathKind(kind)) {
    throw new UserError(
      `"${path}" is not the path of a checkpoint: tinker://<run>/weights/<name> or .../sampler_weights/<name>`,
    );
  }
  return { run, kind, name };
}

const isPathKind = (text: string | undefined): text is PathKind =>
  text !== undefined && Object.hasOwn(checkpointKinds, text);

/** @throws UserError when a checkpoint cannot have the name */
export function checkName(name: unknown): string {
  if (typeof name !== "string" || name === "" || name.length > 200) {
    throw new UserError("a checkpoint's name must have 1 to 200 characters");
  }
  // The name is part of a path of three segments and of a URL.
  if (/[/\\\s?#%\p{Cc}]/u.test(name) || name === "." || name === "..") {
    throw new UserError(`"${name}" cannot be the name of a checkpoint: remove slashes, spaces, and ? # %`);
  }
  return name;
}
