/** Evaluates recorded cases by their families. */
import { differences } from "./differences.ts";
import type { Families, Family, VectorCase } from "./family.ts";

export type Verdict =
  | { name: string; family: string; result: "passed" }
  | { name: string; family: string; result: "failed" | "skipped"; why: string };

export function checkCases(cases: readonly VectorCase[], families: Families): Verdict[] {
  return cases.map((vector) => {
    const name = familyOf(vector.name, families);
    if (name === undefined) {
      return { name: vector.name, family: topOf(vector.name), result: "failed", why: "no family evaluates it" };
    }
    return { name: vector.name, family: name, ...judge(vector, families[name]!) };
  });
}

/** The longest key that is a prefix of the name, in whole parts between slashes. */
function familyOf(name: string, families: Families): string | undefined {
  for (let parts = name.split("/"); parts.length > 0; parts = parts.slice(0, -1)) {
    const key = parts.join("/");
    if (Object.hasOwn(families, key)) return key;
  }
  return undefined;
}

const topOf = (name: string) => name.split("/").slice(0, 2).join("/");

function judge(
  vector: VectorCase,
  { evaluate, deviates, skip }: Family,
): { result: "passed" } | { result: "failed" | "skipped"; why: string } {
  if (!evaluate) return { result: "skipped", why: skip ?? "" };
  try {
    const deviation = deviates?.(vector);
    const found = differences(evaluate(vector), deviation ? deviation.instead : vector.outputs, vector.tol);
    if (found.length > 0) return { result: "failed", why: found.slice(0, 3).join("; ") };
    return deviation ? { result: "skipped", why: deviation.why } : { result: "passed" };
  } catch (error) {
    return { result: "failed", why: error instanceof Error ? `${error.name}: ${error.message}` : String(error) };
  }
}
