/** Splits LaTeX and plain notation into tokens. */

export interface Token {
  /** `name`: a variable, constant or function. `word`, `command`: text and LaTeX that expressions do not contain. */
  kind: "number" | "name" | "sign" | "word" | "command";
  text: string;
}

/** Commands and characters with the same meaning as a sign. */
const signs = new Map([
  ...Object.entries({ "\\cdot": "*", "\\times": "*", "\\ast": "*", "×": "*", "·": "*", "⋅": "*", "**": "^" }),
  ...Object.entries({ "\\div": "/", "÷": "/", "−": "-", "–": "-", "\\pm": "±", "\\mp": "∓", "\\%": "%" }),
  ...Object.entries({ "\\le": "<=", "\\leq": "<=", "≤": "<=", "\\ge": ">=", "\\geq": ">=", "≥": ">=" }),
  ...Object.entries({ "\\ne": "≠", "\\neq": "≠", "\\lt": "<", "\\gt": ">", "\\in": "∈", "\\to": "→" }),
  ...Object.entries({ "\\cup": "∪", "\\cap": "∩", "\\mid": "|", "\\vert": "|" }),
  ...Object.entries({ "\\lbrace": "\\{", "\\rbrace": "\\}", "\\{": "\\{", "\\}": "\\}", "\\|": "\\|" }),
]);

const functions = new Set(
  "sqrt sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln exp abs binom frac surd".split(" "),
);
const greek =
  "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron rho sigma tau upsilon phi chi psi omega " +
  "varepsilon vartheta varrho varsigma varphi Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar";
const variables = new Set(greek.split(" "));
const synonyms = new Map(
  Object.entries({ dfrac: "frac", tfrac: "frac", cfrac: "frac", dbinom: "binom", tbinom: "binom", "√": "surd" }).concat(
    Object.entries({ π: "pi", "∞": "infty", inf: "infty", infinity: "infty", oo: "infty" }),
  ),
);
const constants = new Set(["pi", "infty"]);

/** Whether a name is a function. Other adjacent letters are a product. */
export const isFunction = (name: string) => functions.has(name);

const piece = /\s+|\\[a-zA-Z]+|\\[^a-zA-Z]|\d+(?:\.\d+)?(?:[eE][+-]?\d+(?![\d.]))?|\.\d+|[a-zA-Z]+|<=|>=|\*\*|[^\s]/gu;

/** A run of at least this many letters is a word; fewer letters are a product of variables. */
const shortestWord = 4;

export const tokenize = (text: string): Token[] => [...text.matchAll(piece)].flatMap(([written]) => toTokens(written));

function toTokens(written: string): Token[] {
  if (/^\s/.test(written) || /^\\\s/.test(written)) return [];
  if (/^\.?\d/.test(written)) return [{ kind: "number", text: written }];
  const sign = signs.get(written);
  if (sign !== undefined) return [{ kind: "sign", text: sign }];
  const letters = written.replace("\\", "");
  const name = synonyms.get(letters) ?? letters;
  // The argument of a plain "sqrt 23" is the whole number, since it has no braces.
  if (written === "sqrt") return [{ kind: "name", text: "surd" }];
  if (functions.has(name) || constants.has(name)) return [{ kind: "name", text: name }];
  if (written.startsWith("\\")) return [{ kind: variables.has(name) ? "name" : "command", text: name }];
  if (!/^[a-zA-Z]/.test(written)) return [{ kind: "sign", text: written }];
  if (letters.length >= shortestWord) return [{ kind: "word", text: letters.toLowerCase() }];
  return [...letters].map((text) => ({ kind: "name", text }));
}

/** Whether two texts have the same tokens, ignoring white space and braces around a single index or exponent. */
export function sameTokens(left: string, right: string): boolean {
  const [a, b] = [withoutIndexBraces(tokenize(left)), withoutIndexBraces(tokenize(right))];
  return (
    a.length === b.length && a.every(({ kind, text }, index) => b[index]?.kind === kind && b[index]?.text === text)
  );
}

function withoutIndexBraces(tokens: readonly Token[]): Token[] {
  const isSign = (at: number, text: string) => tokens[at]?.kind === "sign" && tokens[at].text === text;
  const opens = (at: number) => isSign(at, "{") && isSign(at + 2, "}") && (isSign(at - 1, "_") || isSign(at - 1, "^"));
  return tokens.filter((_, at) => !opens(at) && !opens(at - 2) && !(at === 0 && isSign(at, "+")));
}
