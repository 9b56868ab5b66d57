/** Shared code does not compare the names of backends: it asks for capabilities, or reads a table that all backends fill. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import { parseAst } from "vitest/node";
import { backends } from "./config/schema/backends.ts";

const root = fileURLToPath(new URL("..", import.meta.url));

interface Syntax {
  type: string;
  [member: string]: unknown;
}

const isSyntax = (value: unknown): value is Syntax =>
  typeof value === "object" && value !== null && typeof (value as Syntax).type === "string";

const childrenOf = (node: Syntax): Syntax[] =>
  Object.values(node)
    .flatMap((child) => child as unknown)
    .filter(isSyntax);

const namesBackend = (node: unknown): boolean =>
  isSyntax(node) &&
  (node.type === "Literal"
    ? backends.some((name) => name === node.value)
    : node.type === "ArrayExpression" && (node.elements as unknown[]).some(namesBackend));

/** `a === "verl"`, `case "verl":`, `["local", "verl"].includes(a)`, `a.startsWith("tinker")`. */
function compares(node: Syntax): boolean {
  if (node.type === "BinaryExpression")
    return /^[!=]==?$/.test(String(node.operator)) && hasName(node.left, node.right);
  if (node.type === "SwitchCase") return namesBackend(node.test);
  if (node.type !== "CallExpression" || (node.callee as Syntax).type !== "MemberExpression") return false;
  const { object, property } = node.callee as { object?: unknown; property?: { name?: string } } & Syntax;
  const isComparison = /^(includes|indexOf|startsWith|endsWith|localeCompare)$/.test(property?.name ?? "");
  return isComparison && hasName(object, ...(node.arguments as unknown[]));
}

const hasName = (...nodes: unknown[]) => nodes.some(namesBackend);

/** The comparisons in a source file, as they are written. */
function comparisons(code: string, lang: "ts" | "tsx" = "ts"): string[] {
  const visit = (node: Syntax): string[] => [
    ...(compares(node) ? [code.slice(node.start as number, node.end as number)] : []),
    ...childrenOf(node).flatMap(visit),
  ];
  return visit(parseAst(code, { lang }) as unknown as Syntax);
}

test.each([
  ['if (backend === "verl") run();', ['backend === "verl"']],
  ['const a = "local" != config.rllm.backend;', ['"local" != config.rllm.backend']],
  ['switch (backend) { case "tinker": run(); }', ['case "tinker": run();']],
  ['f(["local", "verl"].includes(backend));', ['["local", "verl"].includes(backend)']],
  ['f(backend.startsWith("tinker"));', ['backend.startsWith("tinker")']],
  ['const key = { backends: ["tinker"] }; f(a === "vllm", "verl");', []],
])("%s", (code, found) => expect(comparisons(code)).toEqual(found));

test("shared code does not compare the names of backends", () => {
  const files = ["src", "web"].flatMap((folder) =>
    readdirSync(join(root, folder), { recursive: true, encoding: "utf8" }).map((file) => `${folder}/${file}`),
  );
  const shared = files.filter(
    (file) =>
      /\.tsx?$/.test(file) && !/\.(test|e2e|fixture)\.ts$|^src\/(backends|apps\/server)\/|node_modules/.test(file),
  );
  const found = shared.flatMap((file) => {
    const code = readFileSync(join(root, file), "utf8");
    return comparisons(code, file.endsWith("x") ? "tsx" : "ts").map((text) => `${file}: ${text}`);
  });
  expect(shared.length).toBeGreaterThan(200);
  expect(found).toEqual([]);
});
