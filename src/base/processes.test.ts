import { spawn } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryFolder } from "../temporary-folder.fixture.ts";
import { isAlive } from "./processes.fixture.ts";
import { freePort } from "./processes.ts";

test("a program can listen on the port, which no outgoing connection is given", async () => {
  const port = await freePort();
  expect(port).toBeGreaterThan(1023);
  expect(port).toBeLessThan(32_768);
  const server = createServer().listen(port, "127.0.0.1");
  await once(server, "listening");
  server.close();
});

const script = join(temporaryFolder("guard"), "script.ts");
writeFileSync(
  script,
  `import { spawn } from "node:child_process";
import { guardGroup } from ${JSON.stringify(fileURLToPath(new URL("processes.ts", import.meta.url)))};
const start = () => spawn("sleep", ["300"], { detached: true, stdio: "ignore" }).pid;
const [released, first, second] = [start(), start(), start()];
const release = guardGroup(released);
guardGroup(first);
release();
guardGroup(second);
console.log(JSON.stringify({ released, guarded: [first, second] }));
setInterval(() => {}, 1000);
`,
);

test.runIf(process.platform !== "win32")(
  "a killed process takes its guarded groups with it, not released ones",
  async () => {
    const node = spawn(process.execPath, ["--import", "tsx", script], { stdio: ["ignore", "pipe", "inherit"] });
    const [line] = await new Promise<string[]>((resolve) =>
      node.stdout.once("data", (text) => resolve([String(text)])),
    );
    const { released, guarded } = JSON.parse(line!) as { released: number; guarded: number[] };
    try {
      expect([released, ...guarded].map(isAlive)).toEqual([true, true, true]);
      node.kill("SIGKILL");
      for (let wait = 0; wait < 200 && guarded.some(isAlive); wait++) await sleep(50);
      expect([released, ...guarded].map(isAlive)).toEqual([true, false, false]);
    } finally {
      process.kill(released, "SIGKILL");
    }
  },
);
