/** LaTeX and plain notation alike as a list of tokens. */

export type Token = { kind: "number"; text: string } | { kind: "name"; text: string } | { kind: "sign"; text: string };

/** Commands that are a sign under another name. */
const signs: Record<string, string> = {
  cdot: "*",
  times: "*",
  ast: "*",
  div: "/",
  lbrace: "{",
  pm: "±",
  le: "<=",
  leq: "<=",
  ge: ">=",
  geq: ">=",
  ne: "≠",
  neq: "≠",
  lt: "<",
  gt: ">",
  in: "∈",
  cup: "∪",
  cap: "∩",
  to: "→",
  mid: "|",
  vert: "|",
};

const names = ["sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh"];
const functions = new Set([...names, "log", "ln", "exp", "abs", "binom", "frac"]);

/** Whether a name stands for a function, so that it is one token where letters side by side are a product. */
export const isFunction = (name: string) => functions.has(name);

const piece = /\s+|\\[a-zA-Z]+|\\[^a-zA-Z]|\d+(?:\.\d+)?|\.\d+|[a-zA-Z]+|<=|>=|\*\*|[^\s]/gu;

/** @returns undefined when the text holds something that is no mathematics */
export function tokenize(text: string): Token[] | undefined {
  const tokens: Token[] = [];
  for (const [found] of text.matchAll(piece)) {
    if (found.trim() === "") continue;
    if (/^[\d.]/.test(found)) tokens.push({ kind: "number", text: found });
    else if (found.startsWith("\\")) {
      const name = found.slice(1);
      const sign = signs[name];
      if (sign !== undefined) tokens.push({ kind: "sign", text: sign });
      else if (/^[a-zA-Z]/.test(name))
        tokens.push({ kind: "name", text: name === "dfrac" || name === "tfrac" || name === "cfrac" ? "frac" : name });
      else if (name === "{" || name === "}" || name === "|") tokens.push({ kind: "sign", text: `\\${name}` });
      else if (name.trim() !== "") return undefined;
    } else if (/^[a-zA-Z]/.test(found)) tokens.push(...splitName(found));
    else {
      const plain: Record<string, string> = {
        "**": "^",
        "×": "*",
        "·": "*",
        "⋅": "*",
        "÷": "/",
        "−": "-",
        "–": "-",
        "≤": "<=",
        "≥": ">=",
      };
      if (found === "π") tokens.push({ kind: "name", text: "pi" });
      else if (found === "∞") tokens.push({ kind: "name", text: "infty" });
      else if (found === "√") tokens.push({ kind: "name", text: "sqrt" });
      else tokens.push({ kind: "sign", text: plain[found] ?? found });
    }
  }
  return tokens;
}

/** Plain letters: a known name is one token, any others are variables side by side. */
function splitName(letters: string): Token[] {
  if (isFunction(letters) || letters === "pi" || letters === "infty") return [{ kind: "name", text: letters }];
  if (letters === "inf" || letters === "infinity" || letters === "oo") return [{ kind: "name", text: "infty" }];
  return [...letters].map((text) => ({ kind: "name", text }));
}
