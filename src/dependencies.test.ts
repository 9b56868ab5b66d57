import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const source = fileURLToPath(new URL(".", import.meta.url));
const root = join(source, "..");
const { dependencies, peerDependencies } = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as Record<
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

// The name `hone` on npm belongs to somebody else: outside of a project that has Hone, `npx hone` would download and run that package.
// Therefore the package is `hone-rl`, with two commands of the same file: `hone`, for scripts of a project and for shells, and `hone-rl`.
// Documents and messages write `npx hone-rl`. The subpaths are listed in `exports` of package.json and nowhere else.
test("no document, example or message tells anybody to run or import the package hone, which is somebody else's", () => {
  const strangers =
    /\b(npx|pnpx|bunx|dlx|npm (i|install|exec|create|init)|(pnpm|yarn|bun) (add|create|dlx|x)) (-\S+ )*hone(?![\w-])|(from|import\() ?"hone[/"]/;
  const files = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "examples", "config", "scripts", "src", "web"]
    .flatMap((path) =>
      path.includes(".")
        ? path
        : readdirSync(join(root, path), { recursive: true, encoding: "utf8" }).map((file) => join(path, file)),
    )
    .filter((file) => /\.(md|[cm]?[jt]sx?|json|ya?ml)$/.test(file) && !/node_modules/.test(file));
  const named = files.filter((file) => !/(import-module|dependencies)\.test\.ts$/.test(file));
  expect(named.length).toBeGreaterThan(800);
  const lines = named.flatMap((file) =>
    readFileSync(join(root, file), "utf8")
      .split("\n")
      .filter((line) => strangers.test(line))
      .map((line) => `${file}: ${line.trim()}`),
  );
  expect(lines).toEqual([]);
});
