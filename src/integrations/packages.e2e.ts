/**
 * Scorers of promptfoo, evalite and vitest-evals are rewards, and rows come by Braintrust's client, as the guides say, with the
 * packages as they are. In CI promptfoo is its own 33 MB without its 80 dependencies (600 MB), except those that the assertions use.
 */
import { execFileSync } from "node:child_process";
import { mkdirSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, it } from "vitest";
import { prepareNodeVersion } from "../../scripts/setup/node-version.mjs";
import { nightly } from "../nightly.fixture.ts";
import { temporaryFolder } from "../temporary-folder.fixture.ts";

const root = temporaryFolder("packages");
const program = fileURLToPath(new URL("packages.fixture.ts", import.meta.url));
const promptfoo = "promptfoo@0.123.1";
const ofAssertions = ["nunjucks@3.2.4", "js-yaml@5.4.1", "ajv-formats@3.0.1", "fastest-levenshtein@1.0.16"];

it("promptfoo 0.123.1, evalite 0.19.0, vitest-evals 0.16.1 and Braintrust's client 3.35.0", {
  timeout: 1_800_000,
}, async () => {
  writeFileSync(join(root, "package.json"), '{ "private": true }');
  const npmIn = (cwd: string, ...args: string[]) => execFileSync("npm", args, { cwd, stdio: "pipe", encoding: "utf8" });
  const npm = (...args: string[]) => npmIn(root, ...args);
  // The packages that these depend on are those of a day, too.
  const flags = ["--before=2026-11-28", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund"];
  npm("install", ...flags, "braintrust@3.35.0", ...(nightly ? [promptfoo] : ofAssertions));
  if (!nightly) {
    const packed = npm("pack", "--silent", promptfoo).trim();
    const folder = join(root, "node_modules", "promptfoo");
    mkdirSync(folder);
    execFileSync("tar", ["-xzf", packed, "-C", folder, "--strip-components=1"], { cwd: root });
  }
  const evals = join(root, "evals");
  mkdirSync(evals);
  writeFileSync(join(evals, "package.json"), '{ "private": true }');
  npmIn(evals, "install", ...flags, "--legacy-peer-deps", "evalite@0.19.0", "vitest-evals@0.16.1");
  // Their peer: the one that runs this test.
  symlinkSync(
    fileURLToPath(new URL("../../node_modules/vitest", import.meta.url)),
    join(evals, "node_modules", "vitest"),
  );
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
    // Hone's reward within a scorer of evalite is the third.
    evals: [
      [1, 1, 1],
      [0, 1, 0],
    ],
    braintrust: [
      ["1", "2 + 2?", 4],
      ["2", "3 + 3?", 6],
    ],
  });
});
