/**
 * `hone-rl/testing`: a scripted model, and a tiny model that learns in milliseconds, for tests without Python.
 * @module
 */
export {
  type CharacterChat,
  characterChat,
  lines,
  type RunWorkflowOptions,
  runWorkflow,
  type Script,
  type ScriptedReply,
  type ScriptLine,
  scriptedSampler,
} from "./scripted.ts";
export { type TabularEngineOptions, tabularEngine } from "./tabular-engine.ts";
