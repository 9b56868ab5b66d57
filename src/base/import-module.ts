/** Loads a user's file, in TypeScript or JavaScript, without a build step. */
import { readFileSync } from "node:fs";
import * as nodeModule from "node:module";
import { extname, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { HoneError, isThrownByHone, UserError } from "./errors.ts";
import { nearest } from "./text.ts";
import { ownValue } from "./values.ts";

const manifest = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8")) as {
  name: string;
  exports: Record<string, string | { default: string }>;
};

/** What the package exports, such as `hone-rl/testing`, as the address in this copy of Hone: in src/ or dist/. */
const renamed: Readonly<Record<string, string>> = Object.fromEntries(
  Object.entries(manifest.exports).flatMap(([path, target]) => {
    if (typeof target === "string") return [];
    const file = target.default.replace(/^\.\/dist\//, "../").replace(/\.js$/, extname(import.meta.url));
    return [[manifest.name + path.slice(1), new URL(file, import.meta.url).href]];
  }),
);

/**
 * Loads the file as an ES module regardless of its package.json, so that top-level `await` works. Its imports follow that
 * package.json. `hone-rl` is the running copy, since another copy would have its own errors and state.
 *
 * @param path absolute
 * @throws UserError if the file is not valid code, imports a missing module, throws while loading, or awaits a promise that
 * never settles
 */
export async function importModule(path: string): Promise<Record<string, unknown>> {
  const { href } = pathToFileURL(path);
  // Deno runs TypeScript itself, and tsx does not run in it.
  if (!("deno" in process.versions)) {
    const isTypeScript = /\.[cm]?tsx?$/.test(path);
    if (isTypeScript) (await import("tsx/esm/api")).register();
    register({ renamed, module: /\.tsx?$/.test(path) ? href : undefined });
  }
  const file = relative(process.cwd(), path);
  let stuck = () => {};
  const settled = new Promise<never>((_, reject) => {
    stuck = () =>
      reject(
        new UserError(`${file} awaits a promise at its top level that never settles`, {
          hint: "look for a promise that is never resolved, or a closed connection",
        }),
      );
  });
  process.once("beforeExit", stuck);
  try {
    return await Promise.race([import(href), settled]);
  } catch (error) {
    // Node rejects the error of a required file a second time, without a handler.
    process.once("unhandledRejection", (again) => {
      if (String(again) !== String(error)) throw again;
    });
    throw await explain(error, file);
  } finally {
    process.off("beforeExit", stuck);
  }
}

interface Resolved {
  url: string;
  format?: string;
}
interface Hooks {
  /** The addresses of these module names. */
  renamed: Readonly<Record<string, string>>;
  /** The file that is always an ES module. */
  module: string | undefined;
}

/** Call it after tsx is registered, so that these hooks decide the format. */
function register(data: Hooks): void {
  // The types of the oldest supported Node do not have these newer hooks.
  type Next = (specifier: string, context: object) => Resolved;
  const { registerHooks } = nodeModule as {
    registerHooks?: (hooks: { resolve: (specifier: string, context: object, next: Next) => Resolved }) => void;
  };
  if (registerHooks) {
    registerHooks({
      resolve(specifier, context, next) {
        const resolved = next(ownValue(data.renamed, specifier) ?? specifier, context);
        return resolved.url === data.module ? { ...resolved, format: "module" } : resolved;
      },
    });
    return;
  }
  const hooks = `let data;
    export const initialize = (given) => { data = given; };
    export async function resolve(specifier, context, next) {
      const url = Object.hasOwn(data.renamed, specifier) ? data.renamed[specifier] : specifier;
      const resolved = await next(url, context);
      return resolved.url === data.module ? { ...resolved, format: "module" } : resolved;
    }`;
  nodeModule.register(`data:text/javascript,${encodeURIComponent(hooks)}`, { data });
}

async function explain(error: unknown, file: string): Promise<unknown> {
  if (!(error instanceof Error)) {
    return new UserError(`${file} threw a value that is not an Error: ${String(error)}`, {
      hint: "throw an Error, whose stack shows the location",
    });
  }
  // The frames after that of the import belong to its caller.
  const lines = (error.stack ?? "").split("\n");
  const asked = lines.findIndex((line) => line.includes(fileURLToPath(import.meta.url)));
  const inside = lines.slice(0, asked === -1 ? undefined : asked);
  if (error instanceof HoneError || isThrownByHone(inside.join("\n"))) return error;
  if (/'hone(\/[^']*)?'|node_modules\/hone\//.test(error.message)) {
    return new UserError(`${file}: ${error.message}`, {
      hint: `Hone's package is named ${manifest.name}: import { defineExperiment } from "${manifest.name}", and "${manifest.name}/testing" for tests`,
      cause: error,
    });
  }
  const { code } = error as { code?: string };
  const missing = /^Cannot find (package|module) '([^']+)'/.exec(error.message);
  if (code === "ERR_MODULE_NOT_FOUND" && missing) {
    const hint =
      missing[1] === "package"
        ? `npm install ${missing[2]}`
        : "check the path; it is relative to the file that imports it";
    return new UserError(`${file}: ${error.message}`, { hint, cause: error });
  }
  const notExported = /^The requested module '([^']+)' does not provide an export named '([^']+)'/.exec(error.message);
  const ours = ownValue(renamed, notExported?.[1] ?? "");
  const known = ours === undefined ? [] : Object.keys(await import(ours));
  const [near] = nearest(notExported?.[2] ?? "", known, 1);
  // Of a CommonJS file that awaits at its top level, or requires an ES module that the script is importing (Node 20, Node 22).
  const isCommonJs = /ERROR: Top-level await|is from a module not been linked/.test(error.message);
  if (isCommonJs || code === "ERR_REQUIRE_CYCLE_MODULE") {
    return new UserError(`${file} imports a file that must be an ES module: ${error.message}`, {
      hint: 'add "type": "module" to the package.json of that file, or rename it to .mts',
      cause: error,
    });
  }
  const place = inside.filter((line) => /^\s+at |^(file:|\/|\w:\\).*:\d+$/.test(line) && !line.includes("node:"));
  const where = place.filter((line) => !line.includes("node_modules")).slice(0, 4);
  return new UserError([`${file} could not be loaded: ${error.name}: ${error.message}`, ...where].join("\n"), {
    hint: near && `did you mean ${near}?`,
    cause: error,
  });
}

/** The command line that starts a script, as the script's datasets see it. On `globalThis`, so that two copies of the package share it. */
export const launchKey = Symbol.for("hone.launch");

/** The run folder that the script will continue; undefined if it starts a new run. */
export function pendingResume(): string | undefined {
  return (globalThis as { [launchKey]?: { resume?: string } })[launchKey]?.resume;
}
