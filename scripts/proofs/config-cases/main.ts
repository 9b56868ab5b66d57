/** `npm run config-cases -- FILE`: compares Hone's compositions with recorded ones. */
import { readFileSync } from "node:fs";
import { reportError } from "../../../src/apps/cli/report-error.ts";
import { UserError } from "../../../src/base/errors.ts";
import { evaluateCase } from "./cases.ts";
import { casesSchema } from "./schema.ts";

function main([path, ...rest]: string[]): void {
  if (path === undefined || rest.length > 0) throw new UserError("usage: npm run config-cases -- FILE");
  const results = read(path).map(evaluateCase);
  for (const { id, decisions } of results) {
    for (const name of decisions) console.log(`differs by decision: ${id}: ${name}`);
  }
  const failed = results.filter(({ differences }) => differences.length > 0);
  for (const { id, differences } of failed) console.log([`FAILED ${id}`, ...differences].join("\n  "));
  console.log(`${results.length - failed.length} passed, ${failed.length} failed`);
  process.exitCode = failed.length === 0 ? 0 : 1;
}

function read(path: string) {
  let json: unknown;
  try {
    json = JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    throw new UserError(`${path} cannot be read: ${(error as Error).message}`);
  }
  const parsed = casesSchema.safeParse(json);
  if (parsed.success) return parsed.data;
  const { path: at, message } = parsed.error.issues[0]!;
  throw new UserError(`${path} is not a list of cases: ${at.join(".")}: ${message}`);
}

try {
  main(process.argv.slice(2));
} catch (error) {
  process.exitCode = reportError(error);
}
