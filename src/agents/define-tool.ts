/** Tools as functions with typed, checked arguments. */
import { z } from "zod";
import { withinTime } from "../concurrency/within-time.ts";
import type { Tool } from "./types.ts";

export interface ToolOptions<Shape extends z.ZodRawShape> {
  name: string;
  description: string;
  /** The arguments' schemas, sent to the model as JSON Schema. */
  parameters?: Shape;
  run: (args: z.output<z.ZodObject<Shape>>, context: { signal: AbortSignal }) => unknown;
}

/** A pattern of the tool may take exponential time on some arguments. */
const maxCheckMs = 1000;

/** The model's arguments for a tool are invalid; the message is for the model. */
export class ToolArgumentError extends Error {
  override name = "ToolArgumentError";
}

/**
 * A tool whose arguments are checked before `run` gets them; the model is told of a mistake.
 *
 * @example
 * const weather = defineTool({
 *   name: "weather", description: "The weather of a city.", parameters: { city: z.string() },
 *   run: async ({ city }) => `sunny in ${city}`,
 * });
 */
export function defineTool<Shape extends z.ZodRawShape>(options: ToolOptions<Shape>): Tool {
  const schema = z.object(options.parameters ?? ({} as Shape));
  const { $schema: _, ...parameters } = z.toJSONSchema(schema, { io: "input" });
  return {
    name: options.name,
    description: options.description,
    parameters,
    run(args, context) {
      const parsed = withinTime(maxCheckMs, () => schema.safeParse(args));
      if (parsed === undefined) throw new ToolArgumentError("The arguments take too long to check.");
      if (!parsed.success) throw new ToolArgumentError(z.prettifyError(parsed.error));
      return options.run(parsed.data, context);
    },
  };
}
