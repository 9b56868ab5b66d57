export { composeHydra, type HydraComposition, type HydraRequest } from "./compose-hydra.ts";
export { expandSweep } from "./expand-sweep.ts";

export { isMistake, type Override, parseOverride } from "./parse-override.ts";
export { resolveTree, select } from "./resolve.ts";
export { elementToNode, isSweep } from "./value.ts";
