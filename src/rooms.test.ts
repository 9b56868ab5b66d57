import { readdirSync, readFileSync } from "node:fs";
import { join, relative, sep } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";

const source = fileURLToPath(new URL(".", import.meta.url));

/** What a room may import besides itself and the files directly in src. */
const allowed: Readonly<Record<string, readonly string[]>> = {
  config: ["files", "python"],
  support: ["algorithms", "backends", "config"],
};

test.each(Object.entries(allowed))("src/%s imports only the rooms %j", (room, rooms) => {
  const files = readdirSync(join(source, room), { recursive: true, encoding: "utf8" });
  const product = files.filter((file) => file.endsWith(".ts") && !/\.(test|e2e|fixture)\.ts$/.test(file));
  const wrong = product.flatMap((file) => {
    const code = readFileSync(join(source, room, file), "utf8");
    return [...code.matchAll(/(?:from |import\()"(\.[^"]+)"/g)]
      .map(([, path]) => relative(source, join(source, room, file, "..", path!)).split(sep))
      .filter(([imported, ...inside]) => inside.length > 0 && ![room, ...rooms].includes(imported!))
      .map((path) => `${file} imports ${path.join("/")}`);
  });
  expect(product.length).toBeGreaterThan(0);
  expect(wrong).toEqual([]);
});
