/** A renderer of the user's, for a model whose format Hone does not know: `rollout_engine.renderer_name=./my-renderer.ts`. */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { z } from "zod";
import { messageOf, UserError } from "../../errors.ts";
import { importModule } from "../../import-module.ts";
import { allOrProblem, between, callFromValue, type ReadBody } from "../formats/format.ts";
import type { ToolDefinition } from "../messages.ts";
import type { Renderer } from "./renderers.ts";

/** How a family of models writes thinking and tool calls. */
export interface RendererDefinition {
  /** The texts around the thinking, e.g. `<think>` and `</think>`. Absent: the model does not think. */
  thinking?: { open: string; close: string };
  /** How a tool call is written. Absent: the model does not call tools. */
  calls?: {
    /** The texts around a call, or around a list of calls. */
    open: string;
    close: string;
    /**
     * Reads the text between them. An error that it throws makes the call malformed: its text stays in the reply, and the
     * message says why.
     */
    read(body: string, tools: readonly ToolDefinition[]): DefinedCall | readonly DefinedCall[];
  };
  /** Tokens that end a reply, besides those that the template writes after it and those of generation_config.json. */
  ends?: readonly string[];
  /** A chat template that replaces the model's own. */
  template?: string;
}

interface DefinedCall {
  name: string;
  arguments: Record<string, unknown>;
}

const text = z.string().min(1);

const schema = z.strictObject({
  thinking: z.strictObject({ open: text, close: text }).optional(),
  calls: z.strictObject({ open: text, close: text, read: z.custom((value) => typeof value === "function") }).optional(),
  ends: z.array(text).optional(),
  template: text.optional(),
});

const defined = new WeakSet<object>();

/**
 * Describes how a model writes thinking and tool calls, for `export default`.
 *
 * @example
 * export default defineRenderer({
 *   thinking: { open: "<thought>", close: "</thought>" },
 *   calls: { open: "<call>", close: "</call>", read: (body) => JSON.parse(body) },
 * });
 * @throws UserError if the definition has an unknown key or an empty text
 */
export function defineRenderer(definition: RendererDefinition): Renderer {
  const parsed = schema.safeParse(definition);
  if (!parsed.success) throw new UserError(`defineRenderer: ${z.prettifyError(parsed.error)}`);
  const { thinking, calls, ends, template } = definition;
  const renderer: Renderer = {
    ...(thinking ? { thinking } : {}),
    ...(calls ? { calls: { starts: [calls.open], read: between(calls.open, calls.close, readWith(calls.read)) } } : {}),
    ...(ends ? { ends } : {}),
    ...(template === undefined ? {} : { template }),
  };
  defined.add(renderer);
  return renderer;
}

const readWith =
  (read: NonNullable<RendererDefinition["calls"]>["read"]): ReadBody =>
  (body, tools) => {
    let found: unknown;
    try {
      found = read(body, tools);
    } catch (error) {
      return messageOf(error);
    }
    return allOrProblem([found].flat().map((call) => callFromValue(call, ["arguments"])));
  };

/** @throws UserError if the file is missing or broken, or its default export is not a renderer */
export async function loadRenderer(file: string): Promise<Renderer> {
  const key = `rollout_engine.renderer_name=${file}`;
  const path = resolve(file);
  if (!existsSync(path)) throw new UserError(`${key}: the file does not exist`, { hint: `looked for ${path}` });
  const { default: renderer } = await importModule(path);
  if (typeof renderer === "object" && renderer !== null && defined.has(renderer)) return renderer as Renderer;
  throw new UserError(`${key}: its default export is not a renderer`, {
    hint: "write export default defineRenderer({ ... })",
  });
}
