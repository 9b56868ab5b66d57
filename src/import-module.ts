/** Loads a file of the user's, TypeScript or not, without a build step. Knows nothing of what it exports. */
import * as nodeModule from "node:module";
import { extname, relative } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { HoneError, UserError } from "./errors.ts";
import { nearest } from "./nearest.ts";
import { isThrownByHone } from "./stack-frames.ts";

/** The module of this copy that scripts import by this name, in src/ and in dist/. */
const ownModule = (path: string) => new URL(`${path}${extname(import.meta.url)}`, import.meta.url).href;

const renamed = { hone: ownModule("./index"), "hone/testing": ownModule("./testing/index") };

/**
 * Loads the file as an ES module regardless of its package.json, so that `await` works at
 * its top level; what it imports is what that package says. `hone` is the copy that is running: a second one, such as
 * the sources of a checkout, would have errors and state of its own.
 *
 * @param path absolute
 * @throws UserError for a file that cannot be read as code, imports what is missing, throws while it is loaded, or
 * awaits something that never happens
 */
export async function importModule(path: string): Promise<Record<string, unknown>> {
  const { href } = pathToFileURL(path);
  const isTypeScript = /\.[cm]?tsx?$/.test(path);
  if (isTypeScript) (await import("tsx/esm/api")).register();
  register({
    renamed,
    module: /\.tsx?$/.test(path) ? href : undefined,
  });
  const file = relative(process.cwd(), path);
  let stuck = () => {};
  const settled = new Promise<never>((_, reject) => {
    stuck = () =>
      reject(
        new UserError(`${file} awaits something at its top level that never happens`, {
          hint: "look for a promise that is never resolved, or a connection that was closed",
        }),
      );
  });
  process.once("beforeExit", stuck);
  try {
    return await Promise.race([import(href), settled]);
  } catch (error) {
    // What a file that was required threw is rejected once more by Node, where nobody listens.
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
  /** What these names stand for. */
  renamed: Readonly<Record<string, string>>;
  /** The file that is an ES module in any case. */
  module: string | undefined;
}

/** Registered after tsx, so that these hooks have the last word on the format. */
function register(data: Hooks): void {
  // Node's newer hooks, which its types of the oldest version that Hone runs on do not have.
  type Next = (specifier: string, context: object) => Resolved;
  const { registerHooks } = nodeModule as {
    registerHooks?: (hooks: { resolve: (specifier: string, context: object, next: Next) => Resolved }) => void;
  };
  if (registerHooks) {
    registerHooks({
      resolve(specifier, context, next) {
        const url = Object.hasOwn(data.renamed, specifier) ? data.renamed[specifier] : undefined;
        const resolved = next(url ?? specifier, context);
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
      hint: "throw an Error: its stack says where",
    });
  }
  // What follows the frame of the import itself is who asked for it.
  const lines = (error.stack ?? "").split("\n");
  const asked = lines.findIndex((line) => line.includes(fileURLToPath(import.meta.url)));
  const inside = lines.slice(0, asked === -1 ? undefined : asked);
  if (error instanceof HoneError || isThrownByHone(inside.join("\n"))) return error;
  const { code } = error as { code?: string };
  const missing = /^Cannot find (package|module) '([^']+)'/.exec(error.message);
  if (code === "ERR_MODULE_NOT_FOUND" && missing) {
    const hint =
      missing[1] === "package"
        ? `npm install ${missing[2]}`
        : "check the path; it is relative to the file that imports it";
    return new UserError(`${file}: ${error.message}`, { hint, cause: error });
  }
  const notExported = /^The requested module '(hone(?:\/testing)?)' does not provide an export named '([^']+)'/.exec(
    error.message,
  );
  const known = notExported ? Object.keys(await import(renamed[notExported[1] as keyof typeof renamed])) : [];
  const [near] = nearest(notExported?.[2] ?? "", known, 1);
  if (code === "ERR_REQUIRE_CYCLE_MODULE" || /ERROR: Top-level await/.test(error.message)) {
    return new UserError(`${file} imports a file that awaits at its top level but is no ES module: ${error.message}`, {
      hint: 'write "type": "module" in the package.json beside that file, or let its name end with .mts',
      cause: error,
    });
  }
  const place = inside.filter((line) => /^\s+at |^(file:|\/|\w:\\).*:\d+$/.test(line) && !line.includes("node:"));
  const where = place.filter((line) => !line.includes("node_modules")).slice(0, 4);
  return new UserError([`${file} could not be loaded: ${error.name}: ${error.message}`, ...where].join("\n"), {
    ...(near === undefined ? {} : { hint: `did you mean ${near}?` }),
    cause: error,
  });
}
