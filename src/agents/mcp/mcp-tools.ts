/** The tools of a Model Context Protocol server. Uses the official client, which is loaded on first use. */
import type { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { UserError } from "../../errors.ts";
import type { Tool } from "../types.ts";
import type { ToolBox } from "../use-tools.ts";

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
