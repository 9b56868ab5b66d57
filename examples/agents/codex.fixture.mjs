#!/usr/bin/env node
/**
 * Stands in for Codex, a program of 400 MB, behind its SDK: sends the recorded request of Codex (src/gateway/recorded-agents), runs the
 * command that the model calls, and prints the events of `codex exec --experimental-json`.
 */
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { text } from "node:stream/consumers";

const args = process.argv.slice(2);
const settings = Object.fromEntries(
  args.filter((_, index) => args[index - 1] === "--config").map((setting) => setting.split(/=(.*)/s)),
);
const url = JSON.parse(settings["model_providers.hone.base_url"] ?? "");
const key = process.env[JSON.parse(settings["model_providers.hone.env_key"] ?? "")];
const lines = readFileSync(new URL("../../src/gateway/recorded-agents/codex.jsonl", import.meta.url), "utf8")
  .trim()
  .split("\n");
const { body } = lines.map((line) => JSON.parse(line)).find((line) => line.body !== undefined);
body.input.at(-1).content[0].text = await text(process.stdin);

const say = (/** @type {object} */ event) => console.log(JSON.stringify(event));
say({ type: "thread.started", thread_id: "thread" });
say({ type: "turn.started" });
for (;;) {
  const headers = { authorization: `Bearer ${key}`, "content-type": "application/json" };
  const answer = await fetch(`${url}/responses`, { method: "POST", headers, body: JSON.stringify(body) });
  const events = (await answer.text())
    .split("\n")
    .flatMap((line) => (line.startsWith("data: {") ? [JSON.parse(line.slice(6))] : []));
  const done = events.find(({ type }) => type === "response.completed");
  if (done === undefined) {
    say({ type: "turn.failed", error: { message: `the model answered ${answer.status}` } });
    process.exit(1);
  }
  const { output, usage } = done.response;
  const called = output.find((/** @type {{ type: string }} */ item) => item.type === "function_call");
  if (called === undefined) {
    const said = output.find((/** @type {{ type: string }} */ item) => item.type === "message").content[0].text;
    say({ type: "item.completed", item: { id: "answer", type: "agent_message", text: said } });
    say({ type: "turn.completed", usage });
    break;
  }
  const { cmd } = JSON.parse(called.arguments);
  const { stdout, status } = spawnSync("sh", ["-c", cmd], {
    cwd: args[args.indexOf("--cd") + 1] ?? ".",
    encoding: "utf8",
  });
  const ran = {
    command: cmd,
    aggregated_output: stdout,
    exit_code: status,
    status: status === 0 ? "completed" : "failed",
  };
  say({ type: "item.completed", item: { id: called.call_id, type: "command_execution", ...ran } });
  body.input.push(called, { type: "function_call_output", call_id: called.call_id, output: stdout });
}
