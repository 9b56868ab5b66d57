/**
 * `hone-rl/openai-rft`: jobs of OpenAI's reinforcement fine-tuning as experiments.
 * @module
 */
export { type OpenaiRftOptions, openaiRft } from "./experiment.ts";
export type { GraderOptions, RftRow } from "./graders.ts";
export type { RftGrader } from "./schema.ts";
