#!/usr/bin/env node
/**
 * Stands in for Claude Code, a program of 400 MB, behind the Claude Agent SDK: sends its recorded request (src/gateway/recorded-agents)
 * with the tools of the SDK's MCP server, which it calls, and prints the messages of `--output-format stream-json`.
 */
import { readFileSync } from "node:fs";
import { createInterface } from "node:readline";

const maxTurns = Number(process.argv.find((word) => word.startsWith("--max-turns="))?.split("=")[1]);
const say = (/** @type {object} */ message) => console.log(JSON.stringify(message));
const input = createInterface({ input: process.stdin });
/** @type {Map<string, (response: any) => void>} */
const waiting = new Map();

/** @param {string} server @param {string} method @param {object} params */
async function ask(server, method, params) {
  const id = waiting.size + 1;
  const message = { jsonrpc: "2.0", id, method, params };
  const answer = new Promise((resolve) => waiting.set(`${id}`, resolve));
  say({
    type: "control_request",
    request_id: `${id}`,
    request: { subtype: "mcp_message", server_name: server, message },
  });
  return (await answer).mcp_response.result;
}

/** @param {any} request of the SDK @param {any} user */
async function turn(request, user) {
  const [server] = request.sdkMcpServers;
  const { tools } = request.sdkMcpServerManifests[server].toolsListResult;
  const prefix = `mcp__${server}__`;
  const lines = readFileSync(new URL("../../src/gateway/recorded-agents/claude-code.jsonl", import.meta.url), "utf8");
  const body = lines
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line))
    .find((line) => line.body !== undefined).body;
  body.tools = tools.map((/** @type {any} */ tool) => ({
    name: prefix + tool.name,
    description: tool.description,
    input_schema: tool.inputSchema,
  }));
  body.system = [{ type: "text", text: request.systemPrompt.join("\n") }];
  body.messages = [user];
  const about = { uuid: "0", session_id: "0", parent_tool_use_id: null };
  for (let turns = 1; turns <= maxTurns; turns++) {
    const headers = { "x-api-key": process.env.ANTHROPIC_API_KEY ?? "", "content-type": "application/json" };
    const url = `${process.env.ANTHROPIC_BASE_URL}/v1/messages?beta=true`;
    const answer = await fetch(url, { method: "POST", headers, body: JSON.stringify(body) });
    const message = read(await answer.text());
    say({ type: "assistant", message, ...about });
    body.messages.push({ role: "assistant", content: message.content });
    const called = message.content.find(({ type }) => type === "tool_use");
    if (called === undefined) {
      const result = message.content.map(({ text }) => text ?? "").join("");
      return say({ type: "result", subtype: "success", is_error: false, num_turns: turns, result, ...about });
    }
    const params = { name: called.name.slice(prefix.length), arguments: called.input };
    const { content } = await ask(server, "tools/call", params);
    body.messages.push({ role: "user", content: [{ type: "tool_result", tool_use_id: called.id, content }] });
  }
  say({ type: "result", subtype: "error_max_turns", is_error: true, errors: [], ...about });
}

/** The message of a stream of events. @param {string} stream @returns {{ content: any[] }} */
function read(stream) {
  /** @type {any} */
  let message;
  for (const line of stream.split("\n")) {
    if (!line.startsWith("data: ")) continue;
    const event = JSON.parse(line.slice(6));
    if (event.type === "message_start") message = event.message;
    else if (event.type === "content_block_start") message.content.push({ ...event.content_block, json: "" });
    else if (event.delta?.type === "text_delta") message.content.at(-1).text += event.delta.text;
    else if (event.delta?.type === "input_json_delta") message.content.at(-1).json += event.delta.partial_json;
  }
  if (message === undefined) throw new Error(`the model answered ${stream}`);
  message.content = message.content.map((/** @type {any} */ { json, ...block }) =>
    block.type === "tool_use" ? { ...block, input: JSON.parse(json || "{}") } : block,
  );
  return message;
}

/** @type {any} */
let initial;
for await (const line of input) {
  const { type, request_id, request, response, message } = JSON.parse(line);
  if (type === "control_request") {
    if (request.subtype === "initialize") initial = request;
    const answer = { commands: [], models: [], account: {}, output_style: "default", available_output_styles: [] };
    say({ type: "control_response", response: { subtype: "success", request_id, response: answer } });
  } else if (type === "control_response") waiting.get(response.request_id)?.(response.response);
  else if (type === "user") void turn(initial, message).finally(() => input.close());
}
