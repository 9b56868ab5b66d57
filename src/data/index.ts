export { columns } from "./columns.ts";
export { fromRows } from "./from-rows.ts";
export { generated } from "./generated.ts";
export { type HubOptions, hub } from "./hub.ts";
export { openDataset } from "./open-dataset.ts";
export { type SamplerOptions, stepsPerEpoch, taskIndices, totalSteps } from "./sampler.ts";
export type { Dataset, FileRow } from "./types.ts";
