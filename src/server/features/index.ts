/** The features of `hone serve`, a line for each. */
import type { OpenFeature } from "../feature.ts";
import { checkpointSettings } from "./checkpoint-settings.ts";
import { copies } from "./copies.ts";
import { listings } from "./listings.ts";
import { projects } from "./projects.ts";
import { refusedCalls } from "./refused-calls.ts";
import { search } from "./search.ts";
import { uploads } from "./uploads.ts";
import { usage } from "./usage.ts";
import { vllm } from "./vllm/vllm.ts";

export const features: readonly OpenFeature[] = [
  listings,
  search,
  projects,
  checkpointSettings,
  copies,
  uploads,
  usage,
  vllm,
  refusedCalls,
];
