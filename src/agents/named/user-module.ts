/**
 * `./my-agent.ts#MyAgent`: what a module of the user's exports. On the command line `./my-agent.ts:MyAgent` says the same:
 * an override's value cannot contain `#` without quotes.
 */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { UserError } from "../../errors.ts";
import { importModule } from "../../import-module.ts";
import { nearest } from "../../nearest.ts";

export const isModulePath = (name: string) => /^(?:\.{0,2}\/|[a-zA-Z]:\\)|\.[cm]?[jt]sx?(?:[#:]|$)/.test(name);

type Callable = (...args: never[]) => unknown;

/**
 * @param key of the configuration that names it, for messages
 * @throws UserError when there is no such file, or no such function or class in it
 */
export async function loadExport(name: string, key: string): Promise<Callable> {
  const [, file = name, exported] = /^(.*?\.[cm]?[jt]sx?)(?:[#:](.*))?$/.exec(name) ?? [];
  const path = resolve(file);
  if (!existsSync(path)) throw new UserError(`${key}=${name}: the file ${file} does not exist`);
  const loaded = await importModule(path);
  const functions = Object.keys(loaded).filter((one) => typeof loaded[one] === "function");
  const chosen = exported ?? (functions.length === 1 ? functions[0] : undefined);
  if (chosen !== undefined && functions.includes(chosen)) return loaded[chosen] as Callable;
  const near = nearest(exported ?? "", functions, 1)[0];
  const wanted =
    exported === undefined ? "the name of the export is missing" : `it exports no function or class ${exported}`;
  throw new UserError(`${key}=${name}: ${wanted}`, {
    hint:
      near === undefined
        ? `write ${file}#NAME; it has ${functions.join(", ") || "none"}`
        : `did you mean ${file}#${near}?`,
  });
}

export const isClass = (maker: Callable) => /^class\b/.test(Function.prototype.toString.call(maker));

/** Constructs the class or calls the function, once for each attempt. */
export function makeWith<Made>(maker: Callable, ...args: unknown[]): Made {
  return (isClass(maker) ? Reflect.construct(maker, args) : Reflect.apply(maker, undefined, args)) as Made;
}
