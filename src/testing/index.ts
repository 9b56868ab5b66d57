/**
 * `hone-rl/testing`: a scripted model, and a tiny model that learns in milliseconds, for tests without Python.
 * @module
 */
export { type CharacterChat, characterChat } from "./character-chat.ts";
export { type RunWorkflowOptions, runWorkflow } from "./run-workflow.ts";
export { lines, type Script, type ScriptedReply, type ScriptLine, scriptedSampler } from "./scripted-sampler.ts";
export { type TabularEngineOptions, tabularEngine } from "./tabular-engine.ts";
