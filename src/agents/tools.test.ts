import { readFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { openMcpTools } from "./tools.ts";

/** A server that answers `tools/list` with this expression of the request's cursor. */
const server = (answer: string, pidFile = "") => ({
  command: process.execPath,
  args: [
    "-e",
    `if (${JSON.stringify(pidFile)}) require("node:fs").writeFileSync(${JSON.stringify(pidFile)}, String(process.pid));
     const tool = (name) => ({ name, inputSchema: { type: "object" } });
     const info = { capabilities: { tools: {} }, serverInfo: { name: "s", version: "1" } };
     require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
       const { id, method, params } = JSON.parse(line);
       if (id === undefined) return;
       const answer = method === "initialize"
         ? { result: { protocolVersion: params.protocolVersion, ...info } }
         : ((cursor) => (${answer}))(params?.cursor);
       console.log(JSON.stringify({ jsonrpc: "2.0", id, ...answer }));
     });`,
  ],
});

const folder = temporaryFolder("mcp");

test("tools on several pages are listed", async () => {
  const pages = "{ result: cursor ? { tools: [tool('b')] } : { tools: [tool('a')], nextCursor: '2' } }";
  const box = await openMcpTools(server(pages));
  expect(box.tools.map(({ name }) => name)).toEqual(["a", "b"]);
  await box.close?.();
});

test.each([
  ["fails", "{ error: { code: -32603, message: 'broken' } }", "does not list its tools: MCP error -32603: broken"],
  ["never ends", "{ result: { tools: [], nextCursor: 'again' } }", "the list has more than 100 pages"],
])("a server whose list of tools %s is a mistake, and its program ends", async (_name, answer, message) => {
  const pidFile = join(folder, "pid");
  await expect(openMcpTools(server(answer, pidFile))).rejects.toThrow(message);
  const pid = Number(readFileSync(pidFile, "utf8"));
  await sleep(100);
  expect(() => process.kill(pid, 0)).toThrow("ESRCH");
});
