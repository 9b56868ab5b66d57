/** Recorded compositions and sweeps of Hydra 1.3 (scripts/proofs/recorders/hydra-compositions.py), compared with Hone's. */
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { gunzipSync } from "node:zlib";
import { beforeAll, expect, test } from "vitest";
import { UserError } from "../../errors.ts";
import { temporaryFolder } from "../../temporary-folder.fixture.ts";
import { plain } from "../tree/node.ts";
import { composeHydra } from "./compose-hydra.ts";
import { expandSweep } from "./expand-sweep.ts";
import { resolveTree } from "./resolve.ts";

interface Case {
  overrides: string[];
  result?: unknown;
  /** The name of Hydra's error. */
  error?: string;
}

interface Recorded {
  trees: { files: Record<string, string>; cases: Case[] }[];
  sweeps: { overrides: string[]; runs: string[][] }[];
}

const file = new URL("./peer.fixture.json.gz", import.meta.url);
const { trees, sweeps } = JSON.parse(gunzipSync(readFileSync(file)).toString("utf8")) as Recorded;

const folder = temporaryFolder("hydra");
beforeAll(() => {
  process.env.HYDRA_PEER = "from-environment";
  return () => delete process.env.HYDRA_PEER;
});

/** Values that JSON cannot represent, as the recording spells them. */
function recordable(value: unknown): unknown {
  if (typeof value === "number" && !Number.isFinite(value)) {
    return `float:${Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf"}`;
  }
  if (Array.isArray(value)) return value.map(recordable);
  if (typeof value !== "object" || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, recordable(inner)]));
}

test("there are at least 400 compositions, and many of them fail", () => {
  const cases = trees.flatMap((tree) => tree.cases);
  expect(cases.length).toBeGreaterThan(400);
  expect(cases.filter(({ error }) => error !== undefined).length).toBeGreaterThan(100);
  expect(cases.filter(({ error }) => error === undefined).length).toBeGreaterThan(150);
});

test.each(trees.map(({ files, cases }, index) => ({ index, files, cases })))(
  "tree $index",
  ({ index, files, cases }) => {
    const root = join(folder, String(index));
    for (const [name, text] of Object.entries(files)) {
      mkdirSync(dirname(join(root, name)), { recursive: true });
      writeFileSync(join(root, name), text);
    }
    for (const { overrides, result, error } of cases) {
      const compose = () => {
        const { tree, resolvers } = composeHydra({ searchPath: [root], configName: "config", overrides });
        const resolved = plain(resolveTree(tree, resolvers).tree);
        // Hydra fails when a required value is read; in Hone, the start-up check refuses it.
        if (JSON.stringify(resolved).includes('"???"')) throw new UserError("a required value is missing");
        return recordable(resolved);
      };
      if (error === undefined) expect(compose(), overrides.join(" ")).toEqual(result);
      else expect(compose, `${overrides.join(" ")}: ${error}`).toThrow(UserError);
    }
  },
);

test.each(sweeps)("sweep $overrides", ({ overrides, runs }) => {
  // Python spells true as True; as a value both are the same.
  expect(expandSweep(overrides)).toEqual(
    runs.map((run) => run.map((text) => text.replace(/=(True|False)$/, (spelled) => spelled.toLowerCase()))),
  );
});
