/** A position in a text, and what the parsers of values and of references do with it. */
export class TextReader {
  protected at = 0;
  protected depth = 0;
  constructor(protected readonly text: string) {}

  /** Moves past a match of a sticky pattern. */
  skip(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.at;
    const match = pattern.exec(this.text);
    if (match !== null) this.at = pattern.lastIndex;
    return match;
  }

  protected skipAll(pattern: RegExp): string[] {
    const tokens: string[] = [];
    for (let match = this.skip(pattern); match !== null; match = this.skip(pattern)) tokens.push(match[0]);
    return tokens;
  }
}

export const blank = /[ \t]*/y;

/** Unquoted text up to a mark. Tokens: a run of escapes, blanks, a single character. */
export const keyToken = /(?:\\[\\()[\]{}:=, \t])+|[ \t]+|[\w\-/\\+.$%*@?|]/y;

/** Joins tokens and removes the backslashes of escapes. */
export const undoEscapes = (tokens: readonly string[]) =>
  tokens.map((token) => (token.length > 1 && token.startsWith("\\") ? token.replace(/\\(.)/g, "$1") : token)).join("");
