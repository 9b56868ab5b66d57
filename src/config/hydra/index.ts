export { composeHydra, type HydraComposition, type HydraRequest, missingKeys, requireGiven } from "./compose-hydra.ts";
export { expandSweep } from "./expand-sweep.ts";
export type { HydraSettings } from "./hydra-settings.ts";
export { merge, replaceAt } from "./merge.ts";
export { isMistake, type Override, parseOverride } from "./parse-override.ts";
export { resolveTree, select } from "./resolve.ts";
export { type Element, elementToNode, isSweep, type Sweep, type Value } from "./value.ts";
