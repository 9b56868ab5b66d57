/** What is right enough to go on with, yet worth saying. */

export interface ConfigWarning {
  category: "deprecated_native" | "conflict" | "coerced" | "unsupported";
  /** The keys concerned; of a pair both. */
  paths: readonly string[];
  text: string;
}

/** One line for standard error: `warning[conflict]: ...`. */
export function warningLine({ category, text }: ConfigWarning): string {
  return `warning[${category}]: ${text}`;
}
