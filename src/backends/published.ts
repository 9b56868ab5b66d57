/** Checks of published weights that the engines share. */
import { RunError } from "../errors.ts";
import type { Published } from "./engine.ts";

/** @throws RunError when a sampler is to load weights that another learner published */
export function requireOwn({ id, version }: Published, own: string): void {
  if (id === own) return;
  throw new RunError(
    `version ${version} was published by another learner (${id}, not ${own}); this sampler cannot load it`,
  );
}
