/** Packages that are too large for CI, as they are: their scorers and rows work as the guides say. */
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { prepareNodeVersion } from "../../scripts/setup/node-version.mjs";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

const root = temporaryFolder("packages");
const program = fileURLToPath(new URL("packages.fixture.ts", import.meta.url));

it.skipIf(!nightly)("promptfoo 0.123.1 and Braintrust's client 3.35.0", { timeout: 1_800_000 }, async () => {
  writeFileSync(join(root, "package.json"), '{ "private": true }');
  const flags = ["--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"];
  execFileSync("npm", ["install", ...flags, "promptfoo@0.123.1", "braintrust@3.35.0"], { cwd: root, stdio: "pipe" });
  const node = await prepareNodeVersion("22.23.3");
  const quiet = { PROMPTFOO_DISABLE_TELEMETRY: "1", PROMPTFOO_DISABLE_UPDATE: "1", PROMPTFOO_CONFIG_DIR: root };
  const printed = execFileSync(node, ["--import", "tsx", program, root], {
    env: { ...process.env, ...quiet },
    encoding: "utf8",
  });
  expect(JSON.parse(printed.trim().split("\n").at(-1)!)).toEqual({
    promptfoo: [
      [1, 1, 0],
      [0, 0, 0],
      [1, 0, 1],
    ],
    braintrust: [
      ["1", "2 + 2?", 4],
      ["2", "3 + 3?", 6],
    ],
  });
});
