import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { fileURLToPath } from "node:url";
import { describe, expect, test } from "vitest";

const root = fileURLToPath(new URL("..", import.meta.url));

interface Room {
  name: string;
  imports: readonly string[];
}

const text = readFileSync(join(root, "docs/architecture.md"), "utf8");

/** The rows of the table in docs/architecture.md, from the room that imports nothing to the command line. */
const rooms: readonly Room[] = [...text.matchAll(/^\| `(src[a-z/-]*)` \| [^|]*\| ([^|]*)\|$/gm)].map(
  ([, name = "", imports = ""]) => ({
    name,
    imports: [...imports.matchAll(/`([^`]+)`/g)].map(([, imported]) => `src/${imported}`),
  }),
);

/** A file belongs to the innermost room that it is in. */
function roomOf(file: string): string {
  const around = rooms.filter(({ name }) => file.startsWith(`${name}/`));
  return around.sort((a, b) => b.name.length - a.name.length)[0]?.name ?? "no room";
}

function importsOf(room: string): string[] {
  const imported = new Set<string>();
  for (const file of readdirSync(join(root, room), { recursive: true, encoding: "utf8" })) {
    const path = join(room, file);
    const isProduct = path.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(path);
    // index.ts exports from every room.
    if (!isProduct || roomOf(path) !== room || path === "src/index.ts") continue;
    for (const [, specifier = ""] of readFileSync(join(root, path), "utf8").matchAll(
      /(?:from |import\()"(\.[^"]+)"/g,
    )) {
      imported.add(roomOf(relative(root, join(root, path, "..", specifier))));
    }
  }
  return [...imported].filter((name) => name !== room && name !== "src").sort();
}

describe("the rooms of docs/architecture.md", () => {
  test("contain every source file", () => {
    const files = readdirSync(join(root, "src"), { withFileTypes: true });
    const folders = files.filter((file) => file.isDirectory()).map((folder) => `src/${folder.name}`);
    expect(folders.filter((folder) => !rooms.some(({ name }) => name === folder))).toEqual([]);
  });

  test.each(rooms)("$name imports what the table says", ({ name, imports }) => {
    expect(importsOf(name)).toEqual([...imports].sort());
  });

  test.each(rooms)("$name imports only rooms above it in the table", ({ name, imports }) => {
    const above = rooms.slice(
      0,
      rooms.findIndex((room) => room.name === name),
    );
    expect(imports.filter((imported) => !above.some((room) => room.name === imported))).toEqual([]);
  });
});

test("every file that docs/architecture.md names exists", () => {
  const files = [...text.matchAll(/`(src\/[^`*{]+\.ts)`/g)].map(([, file = ""]) => file);
  expect(files.length).toBeGreaterThan(20);
  expect(files.filter((file) => !existsSync(join(root, file)))).toEqual([]);
});
