import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const source = fileURLToPath(new URL(".", import.meta.url));
const { dependencies, peerDependencies } = JSON.parse(readFileSync(join(source, "../package.json"), "utf8")) as Record<
  string,
  Record<string, string>
>;

test("package.json declares every package that the code imports", () => {
  const known = new Set([...Object.keys(dependencies!), ...Object.keys(peerDependencies!)]);
  const files = readdirSync(source, { recursive: true, encoding: "utf8" });
  const shipped = files.filter((file) => file.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(file));
  const missing = shipped.flatMap((file) => {
    const code = readFileSync(join(source, file), "utf8");
    const imported = [...code.matchAll(/^(?:import|export)[^;]*?from "([^".][^"]*)"|\bimport\("([^".][^"]*)"\)/gm)];
    return imported
      .map(([, named, loaded]) => (named ?? loaded)!)
      .filter((name) => !name.startsWith("node:"))
      .map((name) => /^(?:@[^/]+\/)?[^/]+/.exec(name)![0])
      .filter((name) => !known.has(name))
      .map((name) => `${name} in ${file}`);
  });
  expect(shipped.length).toBeGreaterThan(200);
  expect(missing).toEqual([]);
});
