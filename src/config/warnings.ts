/** Configuration warnings: the run can continue, but the user should know. */

export interface ConfigWarning {
  category: "deprecated_native" | "conflict" | "coerced" | "invalid" | "unsupported" | "no_effect";
  /** The affected keys; for a pair, both. */
  paths: readonly string[];
  text: string;
}

export function printWarnings(warnings: readonly ConfigWarning[]): void {
  for (const warning of warnings) process.stderr.write(`${warningLine(warning)}\n`);
}

/** One line for standard error: `warning[conflict]: ...`. */
export function warningLine({ category, text }: ConfigWarning): string {
  return `warning[${category}]: ${text}`;
}
