import { spawn } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";

const folder = temporaryFolder("parent");
const [parent, child] = [join(folder, "parent.ts"), join(folder, "child.ts")];
const module = JSON.stringify(fileURLToPath(new URL("report-error.ts", import.meta.url)));
writeFileSync(
  parent,
  `import { spawnWithParent } from ${module};
spawnWithParent([${JSON.stringify(child)}]);`,
);
writeFileSync(
  child,
  `import { stopWithParent } from ${module};
stopWithParent();
process.on("SIGTERM", () => { console.log("asked to stop"); process.exit(0); });
console.log("started", process.pid);
setTimeout(() => console.log("not asked to stop"), 60_000);`,
);

test.runIf(process.platform !== "win32")("a child is asked to stop when its parent is killed", async () => {
  const running = spawn(process.execPath, ["--import", "tsx", parent], { stdio: ["ignore", "pipe", "inherit"] });
  let output = "";
  running.stdout.setEncoding("utf8").on("data", (text: string) => {
    output += text;
  });
  const says = async (text: string) => {
    for (let wait = 0; wait < 300 && !output.includes(text); wait++) await sleep(50);
    expect(output).toContain(text);
  };
  await says("started");
  running.kill("SIGKILL");
  await says("asked to stop");
  expect(output).not.toContain("not asked");
});
