/** Workflows with tools: functions with a schema, and the tools of MCP servers. */
import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { z } from "zod";
import { withinTime } from "../base/concurrency.ts";
import { messageOf, UserError } from "../base/errors.ts";
import { nearest } from "../base/text.ts";
import type { ChatMessage, ToolCall } from "../chat/messages.ts";
import type { Task } from "../data/dataset.ts";
import type { CallParams, Environment, Reply, Reward, Tool, Workflow } from "./types.ts";
import { chatAgent, multiTurn, type PromptOptions, promptMessages } from "./workflows.ts";

// A conversation in which the model may call tools before it answers.

export interface UseToolsOptions<Row> extends PromptOptions<Row> {
  /** For all tasks, or opened for one attempt: `close` is called at its end. */
  tools: readonly Tool[] | ((task: Task<Row>) => ToolBox | Promise<ToolBox>);
  /** Grades the answer: the reply without tool calls, or else the last reply. */
  reward: Reward<Row>;
  /** Maximum number of turns, if it is less than `rllm.agent.max_steps`. */
  maxSteps?: number | undefined;
  params?: CallParams | undefined;
}

/** Tools, with what closes their server. */
export interface ToolBox {
  tools: readonly Tool[];
  close?(): void | Promise<void>;
}

/**
 * Calls of one reply run side by side. Errors of tools, calls of unknown tools and malformed calls are
 * shown to the model and counted: `tool_calls`, `tool_errors`, `malformed_tool_calls`.
 *
 * @example
 * useTools<Row>({
 *   prompt: (row) => row.question,
 *   tools: [defineTool({ name: "add", description: "Adds.", parameters: { a: z.number(), b: z.number() }, run: ({ a, b }) => a + b })],
 *   reward: (row, reply) => mathAnswer(reply.text, row.answer),
 * })
 */
export function useTools<Row>(options: UseToolsOptions<Row>): Workflow<Row> {
  return multiTurn<Row>({
    environment: (task) => toolEnvironment(task, options),
    agent: () => chatAgent({ system: options.system }),
    maxSteps: options.maxSteps,
    params: options.params,
  });
}

/** An environment that answers tool calls and is done at a reply without any. */
export async function toolEnvironment<Row>(
  task: Task<Row>,
  { tools: given, prompt, reward }: Omit<UseToolsOptions<Row>, "system">,
): Promise<Environment<Reply>> {
  const box: ToolBox = typeof given === "function" ? await given(task) : { tools: given };
  const counts = { tool_calls: 0, tool_errors: 0, malformed_tool_calls: 0 };
  let messages: readonly ChatMessage[] = [];
  let answer: Reply | undefined;
  return {
    tools: box.tools.map(({ name, description, parameters }) => ({
      name,
      ...(description === undefined ? {} : { description }),
      ...(parameters === undefined ? {} : { parameters }),
    })),
    async reset() {
      messages = await promptMessages(prompt, task.row);
      return messages;
    },
    async step(reply, { signal }) {
      answer = reply;
      counts.tool_calls += reply.toolCalls.length;
      counts.malformed_tool_calls += reply.problems.length;
      if (reply.toolCalls.length === 0 && reply.problems.length === 0) {
        return { observation: [], reward: 0, done: true };
      }
      const observation = await Promise.all(
        reply.toolCalls.map(async (call): Promise<ChatMessage> => {
          const { content, failed } = await runTool(box.tools, call, signal);
          if (failed) counts.tool_errors++;
          return { role: "tool", content, toolCallId: call.id, name: call.name };
        }),
      );
      const problems = reply.problems.map(({ message }) => message).join("; ");
      if (problems !== "") observation.push({ role: "user", content: `That could not be read: ${problems}` });
      return { observation, reward: 0, done: false };
    },
    async score({ signal }) {
      if (answer === undefined) return { reward: null, metrics: counts };
      const graded = await reward(task.row, answer, { task, messages, signal });
      const outcome = typeof graded === "number" ? { reward: graded } : graded;
      return { ...outcome, metrics: { ...counts, ...outcome.metrics } };
    },
    close: () => box.close?.(),
  };
}

async function runTool(
  tools: readonly Tool[],
  call: ToolCall,
  signal: AbortSignal,
): Promise<{ content: string; failed: boolean }> {
  const tool = tools.find(({ name }) => name === call.name);
  if (tool === undefined) {
    const names = tools.map(({ name }) => name);
    const meant = nearest(call.name, names, 1)[0];
    const hint = meant === undefined ? `The tools are ${names.join(", ")}.` : `Did you mean ${meant}?`;
    return { content: `Error: there is no tool "${call.name}". ${hint}`, failed: true };
  }
  try {
    const result = await tool.run(call.arguments, { signal });
    const content = typeof result === "string" ? result : (JSON.stringify(result) ?? "done");
    return { content, failed: false };
  } catch (error) {
    // The attempt has ended, so this is not an error of the tool.
    if (signal.aborted) throw error;
    return { content: `Error: ${messageOf(error)}`, failed: true };
  }
}

// Tools as functions with typed, checked arguments.

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

// The tools of a Model Context Protocol server. Uses the official client, which is loaded on first use.

/** How a server of the Model Context Protocol is reached. */
export type McpServer =
  /** A program that Hone starts and calls over its standard input and output. */
  | { command: string; args?: readonly string[]; env?: Readonly<Record<string, string>>; cwd?: string }
  /** A running server (streamable HTTP). */
  | { url: string; headers?: Readonly<Record<string, string>> };

export interface McpOptions {
  /** Only these tools. Default: all that the server has. */
  only?: readonly string[];
  /** Time limit of one tool call. Default 60. */
  timeoutSeconds?: number;
}

/**
 * Connects to a server. Close the returned tool box: `useTools({ tools: () => openMcpTools(server), ... })` does so after each
 * attempt; to share one server among all rollouts open it once, pass `box.tools`, and close it when the run has ended.
 *
 * @throws UserError when the official client is not installed, the server cannot be reached, or lacks a requested tool
 * @example
 * const box = await openMcpTools({ command: "node", args: ["./calculator-server.js"] });
 */
export async function openMcpTools(server: McpServer, options: McpOptions = {}): Promise<ToolBox> {
  const { only, timeoutSeconds = 60 } = options;
  const { Client, StdioClientTransport, StreamableHTTPClientTransport } = await loadClient();
  const client = new Client({ name: "hone", version: "1" });
  const transport =
    "url" in server
      ? new StreamableHTTPClientTransport(new URL(server.url), { requestInit: { headers: { ...server.headers } } })
      : new StdioClientTransport({
          command: server.command,
          args: [...(server.args ?? [])],
          ...(server.env && { env: { ...server.env } }),
          ...(server.cwd !== undefined && { cwd: server.cwd }),
        });
  const name = "url" in server ? server.url : [server.command, ...(server.args ?? [])].join(" ");
  // The client's transport type forbids undefined where its own transports have it.
  await client.connect(transport as Parameters<typeof client.connect>[0]).catch((cause: Error) => {
    throw new UserError(`the MCP server ${name} cannot be reached: ${cause.message}`, {
      hint: "start it by hand with the same command, or open the same address, and read its output",
      cause,
    });
  });
  const found = await listTools(client, name).catch(async (error: unknown) => {
    await client.close();
    throw error;
  });
  const missing = only?.filter((wanted) => !found.some((tool) => tool.name === wanted)) ?? [];
  if (missing.length > 0) {
    await client.close();
    throw new UserError(`the MCP server ${name} has no tool ${missing.join(", ")}`, {
      hint: `it has ${found.map((tool) => tool.name).join(", ") || "none"}`,
    });
  }
  const tools = found
    .filter((tool) => only === undefined || only.includes(tool.name))
    .map(
      (tool): Tool => ({
        name: tool.name,
        ...(tool.description === undefined ? {} : { description: tool.description }),
        parameters: tool.inputSchema,
        async run(args, { signal }) {
          const called = { name: tool.name, arguments: { ...args } };
          const result = await client.callTool(called, undefined, { signal, timeout: timeoutSeconds * 1000 });
          const text = textOf(result);
          if (result.isError) throw new Error(text);
          return text;
        },
      }),
    );
  return { tools, close: () => client.close() };
}

/** A server with this many pages of tools does not end its list. */
const maxPages = 100;

/** @throws UserError if the server does not list its tools */
async function listTools(client: Client, name: string) {
  const found: Awaited<ReturnType<Client["listTools"]>>["tools"] = [];
  let cursor: string | undefined;
  try {
    for (let page = 0; page < maxPages; page++) {
      const listed = await client.listTools({ cursor });
      found.push(...listed.tools);
      cursor = listed.nextCursor;
      if (cursor === undefined) return found;
    }
    throw new Error(`the list has more than ${maxPages} pages`);
  } catch (cause) {
    throw new UserError(`the MCP server ${name} does not list its tools: ${(cause as Error).message}`, { cause });
  }
}

async function loadClient() {
  try {
    const [{ Client }, { StdioClientTransport }, { StreamableHTTPClientTransport }] = await Promise.all([
      import("@modelcontextprotocol/sdk/client/index.js"),
      import("@modelcontextprotocol/sdk/client/stdio.js"),
      import("@modelcontextprotocol/sdk/client/streamableHttp.js"),
    ]);
    return { Client, StdioClientTransport, StreamableHTTPClientTransport };
  } catch (cause) {
    throw new UserError("tools of an MCP server need the protocol's client, which is not installed", {
      hint: "npm install @modelcontextprotocol/sdk",
      cause,
    });
  }
}

/** Text as it is; a picture or a file is replaced by its name, since the model cannot see it. */
function textOf(result: Readonly<Record<string, unknown>>): string {
  const parts = Array.isArray(result.content) ? (result.content as { type: string; text?: string }[]) : [];
  const text = parts.map((part) => (part.type === "text" ? (part.text ?? "") : `[${part.type}]`)).join("\n");
  return text === "" && result.structuredContent !== undefined ? JSON.stringify(result.structuredContent) : text;
}
