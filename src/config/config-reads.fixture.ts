/**
 * Finds the configuration keys that a source file reads from its syntax tree: `config.training.eps`,
 * `const { eps } = config.training`, `({ rllm: { trainer } }: Config) => trainer.seed`, also through variables.
 *
 * A variable counts as part of the configuration if it was assigned from one, if its type says so
 * (`Config["training"]`), or if it has neither a type nor a value but is named like a section.
 */
import { parseAst } from "vitest/node";

interface Syntax {
  type: string;
  [member: string]: unknown;
}

/** The configuration path of each variable; null if it is not part of the configuration. Absent: unknown. */
type Scope = Map<string, string[] | null>;

/** Dotted paths as far as they are known: `training.eps`, or `trainer.seed` if the parent section is unknown. */
export function configReads(source: string): Set<string> {
  const reads = new Set<string>();
  visit(parseAst(source, { lang: "ts" }) as unknown as Syntax, new Map(), reads);
  return reads;
}

/** Whether a dotted path refers to this key: the paths are equal, or the key ends with the path. */
export function isReadOf(key: string, read: string): boolean {
  return read === key || (read.includes(".") && key.endsWith(`.${read}`)) || (!key.includes(".") && read === key);
}

function visit(node: Syntax, scope: Scope, reads: Set<string>): void {
  if (isFunction(node)) {
    const inner: Scope = new Map(scope);
    for (const param of node.params as Syntax[]) bind(param, typePath(param), inner, reads);
    for (const part of [...(node.params as Syntax[]), node.body as Syntax]) visit(part, inner, reads);
    return;
  }
  if (node.type === "VariableDeclarator") {
    const init = node.init as Syntax | null;
    if (init !== null) visit(init, scope, reads);
    const typed = typePath(node.id as Syntax);
    bind(node.id as Syntax, typed !== undefined || init === null ? typed : (pathOf(init, scope) ?? null), scope, reads);
    return;
  }
  if (node.type === "ForOfStatement") {
    visit(node.right as Syntax, scope, reads);
    for (const { id } of ((node.left as Syntax).declarations ?? []) as { id: Syntax }[]) bind(id, null, scope, reads);
    visit(node.body as Syntax, new Map(scope), reads);
    return;
  }
  if (node.type === "BlockStatement") {
    const inner: Scope = new Map(scope);
    for (const statement of node.body as Syntax[]) visit(statement, inner, reads);
    return;
  }
  if (node.type === "MemberExpression") {
    const path = pathOf(node, scope);
    if (path) reads.add(path.join("."));
  }
  for (const [name, child] of Object.entries(node)) {
    if (name === "typeAnnotation" || name === "returnType") continue;
    for (const one of Array.isArray(child) ? child : [child]) if (isSyntax(one)) visit(one, scope, reads);
  }
}

/** Assigns paths to the variables of a pattern, and records the destructured keys as read. */
function bind(pattern: Syntax, path: string[] | null | undefined, scope: Scope, reads: Set<string>): void {
  if (pattern.type === "AssignmentPattern") {
    const fallback = pathOf(pattern.right as Syntax, scope);
    bind(pattern.left as Syntax, path ?? fallback, scope, reads);
  } else if (pattern.type === "Identifier") {
    if (path === undefined) scope.delete(pattern.name as string);
    else scope.set(pattern.name as string, path);
  } else if (pattern.type === "ObjectPattern") {
    for (const property of pattern.properties as Syntax[]) {
      if (property.type !== "Property" || property.computed) continue;
      const name = (property.key as Syntax).name as string;
      const inner = name === "config" ? [] : path && [...path, name];
      if (inner && inner.length > 0) reads.add(inner.join("."));
      bind(property.value as Syntax, inner, scope, reads);
    }
  }
}

/** The configuration path of an expression; null or undefined if it is not part of the configuration. */
function pathOf(node: Syntax, scope: Scope): string[] | null | undefined {
  switch (node.type) {
    case "Identifier": {
      const name = node.name as string;
      if (scope.has(name)) return scope.get(name);
      return name === "config" ? [] : [name];
    }
    case "MemberExpression": {
      const name = node.computed ? (node.property as Syntax).value : (node.property as Syntax).name;
      if (name === "config") return [];
      const path = pathOf(node.object as Syntax, scope);
      return path && typeof name === "string" ? [...path, name] : null;
    }
    case "TSAsExpression":
    case "TSNonNullExpression":
    case "TSSatisfiesExpression":
    case "ChainExpression":
    case "ParenthesizedExpression":
      return pathOf(node.expression as Syntax, scope);
    case "LogicalExpression":
      return pathOf(node.left as Syntax, scope);
    default:
      return null;
  }
}

/** The configuration path of a type: `Config` is the root; undefined without a type; null for any other type. */
function typePath(pattern: Syntax): string[] | null | undefined {
  const target = pattern.type === "AssignmentPattern" ? (pattern.left as Syntax) : pattern;
  const annotation = target.typeAnnotation as Syntax | null | undefined;
  return annotation ? placeOf(annotation.typeAnnotation as Syntax) : undefined;
}

function placeOf(type: Syntax): string[] | null {
  if (type.type === "TSIndexedAccessType") {
    const name = ((type.indexType as Syntax).literal as Syntax | undefined)?.value;
    if (name === "config") return [];
    const place = placeOf(type.objectType as Syntax);
    return place !== null && typeof name === "string" ? [...place, name] : null;
  }
  if (type.type !== "TSTypeReference") return null;
  const name = (type.typeName as Syntax).name;
  if (name === "Config") return [];
  const [first] = ((type.typeArguments as Syntax | null)?.params ?? []) as Syntax[];
  return (name === "Pick" || name === "Omit" || name === "Readonly") && first ? placeOf(first) : null;
}

const isSyntax = (value: unknown): value is Syntax =>
  typeof value === "object" && value !== null && typeof (value as Syntax).type === "string";

const isFunction = ({ type }: Syntax) =>
  type === "FunctionDeclaration" || type === "FunctionExpression" || type === "ArrowFunctionExpression";
