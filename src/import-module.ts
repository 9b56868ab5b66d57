/** Loads a file of the user's, TypeScript or not, without a build step. Knows nothing of what it exports. */
import * as nodeModule from "node:module";
import { relative } from "node:path";
import { pathToFileURL } from "node:url";
import { UserError } from "./errors.ts";
import { isThrownByHone } from "./stack-frames.ts";

/**
 * The file is an ES module whatever its package.json says, so that `await` may stand at its top level; what it imports
 * is what that package says.
 *
 * @param path absolute
 * @throws UserError for a file that cannot be read as code, imports what is not there, or throws while it is loaded
 */
export async function importModule(path: string): Promise<Record<string, unknown>> {
  const { href } = pathToFileURL(path);
  if (/\.[cm]?tsx?$/.test(path)) {
    (await import("tsx/esm/api")).register();
    if (/\.tsx?$/.test(path)) readAsModule(href);
  }
  try {
    return await import(href);
  } catch (error) {
    // What a file that was required threw is rejected once more by Node, where nobody listens.
    process.once("unhandledRejection", (again) => {
      if (String(again) !== String(error)) throw again;
    });
    throw explain(error, relative(process.cwd(), path));
  }
}

type Resolve = (specifier: string, context: object, next: Resolve) => { url: string; format?: string };

/** Registered after tsx, so that it has the last word on the format. */
function readAsModule(href: string): void {
  // Node's newer hooks, which its types of the oldest version that Hone runs on do not have.
  const { registerHooks } = nodeModule as { registerHooks?: (hooks: { resolve: Resolve }) => void };
  if (registerHooks) {
    registerHooks({
      resolve(specifier, context, next) {
        const resolved = next(specifier, context, next);
        return resolved.url === href ? { ...resolved, format: "module" } : resolved;
      },
    });
    return;
  }
  const hooks = `let href;
    export const initialize = (data) => { href = data; };
    export async function resolve(specifier, context, next) {
      const resolved = await next(specifier, context);
      return resolved.url === href ? { ...resolved, format: "module" } : resolved;
    }`;
  nodeModule.register(`data:text/javascript,${encodeURIComponent(hooks)}`, { data: href });
}

function explain(error: unknown, file: string): unknown {
  if (!(error instanceof Error) || error instanceof UserError || isThrownByHone(error.stack)) return error;
  const { code } = error as { code?: string };
  const missing = /^Cannot find (package|module) '([^']+)'/.exec(error.message);
  if (code === "ERR_MODULE_NOT_FOUND" && missing) {
    const hint =
      missing[1] === "package"
        ? `npm install ${missing[2]}`
        : "check the path; it is relative to the file that imports it";
    return new UserError(`${file}: ${error.message}`, { hint, cause: error });
  }
  if (code === "ERR_REQUIRE_CYCLE_MODULE" || /ERROR: Top-level await/.test(error.message)) {
    return new UserError(`${file} imports a file that awaits at its top level but is no ES module: ${error.message}`, {
      hint: 'write "type": "module" in the package.json beside that file, or let its name end with .mts',
      cause: error,
    });
  }
  const place = (error.stack ?? "")
    .split("\n")
    .filter((line) => /^\s+at |^file:/.test(line) && !line.includes("node:"));
  const where = place.filter((line) => !line.includes("node_modules")).slice(0, 4);
  return new UserError([`${file} could not be loaded: ${error.name}: ${error.message}`, ...where].join("\n"), {
    cause: error,
  });
}
