/** Tools, the choice of a tool, and tool calls, in the forms of the APIs. */
import type { ToolCall, ToolDefinition } from "../../chat/messages.ts";
import { isObject } from "../../is-object.ts";
import type { CallContext } from "../calls/model-call.ts";
import { type Body, badParameter, readBoolean, readList } from "../requests/read-parameters.ts";
import { demand } from "./guarantees.ts";

/** How an API writes its tools. */
export interface ToolForm {
  /** Undefined: the value is not a choice. */
  choice: (value: unknown) => "auto" | "none" | "required" | { name: unknown } | undefined;
  /** The choices, for an error message. */
  choices: string;
  /** Name, description, parameters and strict of a tool; undefined if it is not a function of the client. */
  definition: (tool: Body) => Body | undefined;
  /** Whether the service of the API would run a tool of this type. */
  isHosted: (type: unknown) => boolean;
}

/**
 * Tools that the API's own service would run are left out beside the client's functions, because agents offer them unasked,
 * and are refused where they are all that a client offers.
 * @returns the tools that the model may call; none if the client chose so
 */
export function readTools(body: Body, context: CallContext, form: ToolForm): ToolDefinition[] {
  const choice = form.choice(body.tool_choice ?? undefined);
  if (choice === undefined) throw badParameter("tool_choice", `tool_choice must be ${form.choices}`);
  if (choice === "none") return [];
  if (choice === "required") demand(context, "tool_choice", "that a tool is called");
  if (typeof choice === "object") demand(context, "tool_choice", `that the tool ${choice.name} is called`);
  const offered = readList(body, "tools") ?? [];
  const isFunction = (tool: unknown) => isObject(tool) && form.definition(tool) !== undefined;
  const hasFunctions = offered.some(isFunction);
  const tools = offered.flatMap((tool, index) => {
    const at = `tools[${index}]`;
    const given = isObject(tool) ? form.definition(tool) : undefined;
    if (given !== undefined) return toolDefinition(given, at, context);
    if (hasFunctions && isObject(tool) && form.isHosted(tool.type)) {
      const reason = `tools of type ${tool.type} are left out: only functions of the client can be called`;
      context.notices.add(`ignored_parameter/tools.${tool.type}`, reason);
      return [];
    }
    throw badParameter(at, `${at} must be a function of the client; a model in training has no other tools`);
  });
  if (tools.length > 0 && readBoolean(body, "parallel_tool_calls") === false) {
    context.notices.add("ignored_parameter/parallel_tool_calls", "parallel_tool_calls=false is not enforced");
  }
  return tools;
}

function toolDefinition(given: Body, at: string, { notices }: CallContext): ToolDefinition {
  const { name, description, parameters, strict } = given;
  if (typeof name !== "string" || name === "") throw badParameter(`${at}.name`, `${at}.name is missing`);
  if (strict === true) {
    notices.add("ignored_parameter/tools.strict", "strict tools are ignored: arguments are what the model samples");
  }
  const tool: ToolDefinition = { name };
  if (typeof description === "string") tool.description = description;
  if (isObject(parameters)) tool.parameters = parameters;
  return tool;
}

/** @param given the arguments as JSON text */
export function toolCall(id: string, name: string, given: unknown, at: string): ToolCall {
  const text = typeof given === "string" && given.trim() !== "" ? given : "{}";
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  if (!isObject(value)) throw badParameter(at, `${at} must be a JSON object; it is ${text.slice(0, 200)}`);
  return { id, name, arguments: value, argumentsText: text };
}

/** The arguments as the model wrote them. */
export const argumentsText = (call: ToolCall) => call.argumentsText ?? JSON.stringify(call.arguments);

export const toOpenaiToolCalls = (calls: readonly ToolCall[]) =>
  calls.map((call) => ({
    id: call.id,
    type: "function" as const,
    function: { name: call.name, arguments: argumentsText(call) },
  }));
