/** Configuration warnings: the run can continue, but the user should know. */

export interface ConfigWarning {
  category: "deprecated_native" | "conflict" | "coerced" | "invalid" | "unsupported" | "no_effect";
  /** The affected keys; for a pair, both. */
  paths: readonly string[];
  text: string;
}

/** One line for standard error: `warning[conflict]: ...`. */
export function warningLine({ category, text }: ConfigWarning): string {
  return `warning[${category}]: ${text}`;
}
