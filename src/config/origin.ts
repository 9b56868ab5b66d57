/** Where a value of the configuration came from. */

export type Origin =
  | { kind: "default" }
  /** The chosen backend's own defaults. */
  | { kind: "backend"; file: string; line: number; column: number }
  /** The `config` of the experiment's script. */
  | { kind: "script" }
  | { kind: "file"; file: string; line: number; column: number }
  /** An override, verbatim as it was typed. */
  | { kind: "override"; text: string };

/** The origin in one line: `default`, `gpu.yaml:3:5`, `command line: training.learning_rate=1e-4`. */
export function originText(origin: Origin): string {
  switch (origin.kind) {
    case "default":
      return "default";
    case "backend":
      return `backend default (${oneLine(origin.file.replace(/^.*\/(?=config\/)/, ""))}:${origin.line})`;
    case "script":
      return "the script's config";
    case "file":
      return `${oneLine(origin.file)}:${origin.line}:${origin.column}`;
    case "override":
      return `command line: ${oneLine(origin.text)}`;
  }
}

/** Control characters escaped and long text cut, so that it can stand in a message or a comment. */
export function oneLine(text: string, limit = 120): string {
  const cut = text.length > limit ? `${text.slice(0, limit)}...` : text;
  return cut.replace(/[\p{Cc}\u2028\u2029]/gu, (character) => JSON.stringify(character).slice(1, -1));
}
