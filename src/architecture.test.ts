import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));
const text = readFileSync(join(root, "docs/architecture.md"), "utf8");

/** A folder of `src`, or one file. */
interface Module {
  name: string;
  imports: readonly string[];
}

/** The rows of the table in docs/architecture.md, from the module that imports nothing to the commands. */
const modules: readonly Module[] = [...text.matchAll(/^\| `src\/([a-z./-]+)` \| [^|]*\| ([^|]*)\|$/gm)].map(
  ([, name = "", imports = ""]) => ({
    name,
    imports: [...imports.matchAll(/`([^`]+)`/g)].map(([, imported]) => imported!),
  }),
);

const files = readdirSync(join(root, "src"), { recursive: true, encoding: "utf8" }).filter(
  // index.ts exports from every module.
  (file) => file.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(file) && file !== "index.ts",
);

/** A file belongs to the innermost module that it is in. */
function moduleOf(file: string): string | undefined {
  const around = modules.filter(({ name }) => file === name || file.startsWith(`${name}/`));
  return around.sort((a, b) => b.name.length - a.name.length)[0]?.name;
}

function importsOf(name: string): string[] {
  const imported = files
    .filter((file) => moduleOf(file) === name)
    .flatMap((file) => {
      const code = readFileSync(join(root, "src", file), "utf8");
      return [...code.matchAll(/(?:from |import\()"(\.[^"]+)"/g)].map(
        ([, specifier = ""]) => moduleOf(relative(root, join(root, file, "..", specifier))) ?? specifier,
      );
    });
  return [...new Set(imported)].filter((module) => module !== name).sort();
}

describe("the modules of docs/architecture.md", () => {
  test("contain every source file", () => {
    expect(files.filter((file) => moduleOf(file) === undefined)).toEqual([]);
  });

  test.each(modules)("$name imports what the table says", ({ name, imports }) => {
    expect(importsOf(name)).toEqual([...imports].sort());
  });

  test.each(modules)("$name imports only modules above it in the table", ({ name, imports }) => {
    const above = modules.slice(
      0,
      modules.findIndex((module) => module.name === name),
    );
    expect(imports.filter((imported) => !above.some((module) => module.name === imported))).toEqual([]);
  });
});

test("every file that docs/architecture.md names exists", () => {
  const named = [...text.matchAll(/`(src\/[^`*{]+\.ts)`/g)].map(([, file = ""]) => file);
  expect(named.length).toBeGreaterThan(5);
  expect(named.filter((file) => !existsSync(join(root, file)))).toEqual([]);
});
