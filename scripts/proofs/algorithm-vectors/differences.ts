/** Compares values with recorded values. */

/** The places where `got` differs from `want` by more than `tol * (1 + |want|)`. Keys that `want` does not have are ignored. */
export function differences(got: unknown, want: unknown, tol: number, path = ""): string[] {
  if (typeof want === "number") return close(got, want, tol) ? [] : [`${path}: got ${String(got)}, want ${want}`];
  if (Array.isArray(want) && (got as { length?: number } | undefined)?.length !== want.length) {
    return [`${path}: got ${String((got as { length?: number } | undefined)?.length)} entries, want ${want.length}`];
  }
  if (typeof want === "object" && want !== null) {
    return Object.entries(want).flatMap(([key, part]) =>
      differences((got as Record<string, unknown> | null | undefined)?.[key], part, tol, `${path}/${key}`),
    );
  }
  return Object.is(got, want) ? [] : [`${path}: got ${String(got)}, want ${String(want)}`];
}

function close(got: unknown, want: number, tol: number): boolean {
  if (typeof got !== "number") return false;
  return Number.isFinite(want) ? Math.abs(got - want) <= tol * (1 + Math.abs(want)) : Object.is(got, want);
}
