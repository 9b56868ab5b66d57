/** Hermes, Qwen2.5, Qwen3, SmolLM3, Granite 4: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them. */
import { between, type CallFormat, callFromJson } from "./format.ts";

/**
 * @example
 * hermes.read('Let me see.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', []);
 * // content "Let me see.", one call
 */
export const hermes: CallFormat = {
  starts: ["<tool_call>"],
  read: between("<tool_call>", "</tool_call>", (body) => callFromJson(body, "arguments")),
};
