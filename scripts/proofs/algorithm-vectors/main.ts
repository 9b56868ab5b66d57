/** `npm run algorithm-vectors -- FILE`: compares Hone's algorithms with values recorded from other systems. */
import { UserError } from "../../../src/base/errors.ts";
import { checkCases, type Verdict } from "./check-cases.ts";
import { families } from "./families.ts";
import { readCases } from "./read-cases.ts";

function groupBy<Value>(values: readonly Value[], keyOf: (value: Value) => string): Map<string, Value[]> {
  const groups = new Map<string, Value[]>();
  for (const value of values) groups.set(keyOf(value), [...(groups.get(keyOf(value)) ?? []), value]);
  return groups;
}

function report(verdicts: readonly Verdict[]): string[] {
  const of = (result: Verdict["result"], some = verdicts) => some.filter((verdict) => verdict.result === result);
  const byFamily = groupBy(verdicts, ({ family }) => family);
  const width = Math.max(...[...byFamily.keys()].map(({ length }) => length));
  const rows = [...byFamily].map(([family, own]) => {
    const counts = (["passed", "failed", "skipped"] as const).map((result) => `${of(result, own).length} ${result}`);
    return `  ${family.padEnd(width)}  ${counts.map((count) => count.padStart(11)).join("")}`;
  });
  const causes = groupBy(of("skipped") as { family: string; why: string }[], ({ family, why }) => `${family}: ${why}`);
  const failed = of("failed") as { name: string; why: string }[];
  return [
    ...rows,
    ...(causes.size > 0 ? ["", "Skipped:", ...[...causes].map(([cause, own]) => `  ${own.length} of ${cause}`)] : []),
    ...(failed.length > 0 ? ["", "Failed:", ...failed.map(({ name, why }) => `  ${name}\n    ${why}`)] : []),
    "",
    `${of("passed").length} passed, ${failed.length} failed, ${of("skipped").length} skipped`,
  ];
}

const [path, ...rest] = process.argv.slice(2);
try {
  if (path === undefined || rest.length > 0) throw new UserError("usage: npm run algorithm-vectors -- FILE");
  const verdicts = checkCases(readCases(path), families);
  console.log(report(verdicts).join("\n"));
  if (verdicts.some(({ result }) => result === "failed")) process.exitCode = 1;
} catch (error) {
  if (!(error instanceof UserError)) throw error;
  console.error(error.message);
  process.exitCode = 2;
}
