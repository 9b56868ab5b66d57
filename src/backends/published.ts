/** Checks of published weights that the engines share. */
import { RunError, UserError } from "../errors.ts";
import type { Published } from "./engine.ts";

/** @throws UserError when the weights are of another kind than this engine's */
export function idOf(published: Published): string {
  if (published.kind === "engine") return published.id;
  throw new UserError(`this engine's sampler cannot load weights of the kind "${published.kind}"`);
}

/** @throws RunError when a sampler is to load weights that another learner published */
export function requireOwn(published: Published, own: string): void {
  const id = idOf(published);
  if (id === own) return;
  throw new RunError(
    `version ${published.version} was published by another learner (${id}, not ${own}); this sampler cannot load it`,
  );
}
