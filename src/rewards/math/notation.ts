/**
 * One notation for what people and models write: characters of Unicode, LaTeX without fonts and spacing, and a value apart from
 * its unit. Never joins two tokens.
 */
import { parseExpression } from "./parse.ts";

// Characters.

const superscripts = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣ";
const subscripts = "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙᵢₓ";
const plainScript = "0123456789+-=()nix";
const fractions: Record<string, string> = {
  ...{ "½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45", "⅙": "16" },
  ...{ "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78", "⅐": "17", "⅑": "19" },
};
const greek =
  "α alpha β beta γ gamma δ delta ε epsilon ϵ epsilon ζ zeta η eta θ theta ϑ theta ι iota κ kappa λ lambda μ mu µ mu ν nu ξ xi ρ rho " +
  "σ sigma τ tau υ upsilon φ phi ϕ phi χ chi ψ psi ω omega π pi Γ Gamma Δ Delta Θ Theta Λ Lambda Ξ Xi Π Pi Σ Sigma Φ Phi Ψ Psi Ω Omega";
const named = new Map([
  ...[...greek.matchAll(/(\S) (\w+)/g)].map(([, letter = "", name]) => [letter, `\\${name} `] as const),
  ...Object.entries({ "∅": "\\emptyset ", "⟨": "\\langle ", "⟩": "\\rangle ", "〈": "\\langle ", "〉": "\\rangle " }),
  ...Object.entries({ "⌊": "\\lfloor ", "⌋": "\\rfloor ", "⌈": "\\lceil ", "⌉": "\\rceil ", ℝ: "\\mathbb{R}" }),
  ...Object.entries({ "∖": "\\setminus ", "≈": "\\approx ", "≠": "\\ne ", "∠": "\\angle ", "△": "\\triangle " }),
  ...Object.entries({
    "…": "\\ldots ",
    "‐": "-",
    "‑": "-",
    "﹣": "-",
    "⋯": "\\ldots ",
    ℯ: "e",
    ⅈ: "i",
    "，": ",",
    "．": ".",
  }),
]);

const toScript = (mark: string, script: string) => (run: string) =>
  `${mark}{${[...run].map((character) => plainScript[script.indexOf(character)]).join("")}}`;

/** Superscripts, fractions, Greek letters and full-width characters as LaTeX. */
function plainCharacters(text: string): string {
  // Most answers have none.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range of ASCII
  if (/^[\x00-\x7f]*$/.test(text)) return text;
  return text
    .replace(/[\uff01-\uff5e]/g, (wide) => String.fromCharCode(wide.charCodeAt(0) - 0xfee0))
    .replace(/(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))/g, "")
    .replace(new RegExp(`[${superscripts}]+`, "g"), toScript("^", superscripts))
    .replace(new RegExp(`[${subscripts}]+`, "g"), toScript("_", subscripts))
    .replace(/[\u00bc-\u00be\u2150-\u215e]/g, (found) => {
      const [top, bottom] = fractions[found] ?? "";
      return top === undefined ? found : `\\frac{${top}}{${bottom}}`;
    })
    .replace(
      /[∛∜]\s?(\d+|\([^()]*\)|[a-z])/g,
      (found, inside: string) => `\\sqrt[${found[0] === "∛" ? 3 : 4}]{${inside}}`,
    )
    .replace(/((?:\d\u0305)+)/g, (digits) => `\\overline{${digits.replaceAll("\u0305", "")}}`)
    .replace(/[^\p{ASCII}]/gu, (character) => named.get(character) ?? character);
}

/** `0.1\overline{6}`, `0.1\dot{6}` and 0.1666... as fractions. */
function withoutRepeatingDecimals(text: string): string {
  if (!/\\(?:overline|bar|dot|[lc]?dots)|\.\.\.|\.\(/.test(text)) return text;
  const toFraction = (whole: string, start: string, block: string) => {
    const [digits, before] = [`${whole}${start}`, block.length];
    return `(\\frac{${BigInt(`${digits}${block}`) - BigInt(digits || "0")}}{${"9".repeat(before)}${"0".repeat(start.length)}})`;
  };
  return text
    .replace(/\\dot ?\{?(\d)\}? ?(\d{0,20}) ?\\dot ?\{?(\d)\}?/g, "\\overline{$1$2$3}")
    .replace(
      /(?<![\d.])(\d{0,20})\.(\d{0,30}) ?\\(?:overline|bar|dot) ?(?:\{ ?(\d{1,30}) ?\}|(\d))/g,
      (_, whole: string, start: string, braced?: string, digit?: string) =>
        toFraction(whole, start, braced ?? digit ?? ""),
    )
    .replace(/^(-? ?)(\d{1,20})\.\((\d{1,30})\)$/, (_, sign: string, whole: string, block: string) => {
      return `${sign}${toFraction(whole, "", block)}`;
    })
    .replace(
      /(?<![\d.])(\d{1,20})\.(\d{2,40}) ?(?:\\[lc]?dots(?![a-z])|\.\.\.)/g,
      (written, whole: string, digits: string) => {
        for (let length = 1; length <= digits.length / 2; length++) {
          const block = digits.slice(-length);
          let start = digits.length;
          while (start >= length && digits.slice(start - length, start) === block) start -= length;
          const times = (digits.length - start) / length;
          if (times >= (length === 1 ? 3 : 2)) return toFraction(whole, digits.slice(0, start), block);
        }
        return written;
      },
    );
}

// LaTeX.

/** The first alternative is a line break, so that its second backslash does not start a command. */
const spacing =
  /\\\\|\\(?:[!,;:> ]|(?:quad|qquad|displaystyle|limits|[bB]igg?[lrm]?|[bB]ig)(?![a-zA-Z])|(?:left|right)(?:\.|(?![a-zA-Z])))|~/g;
const textCommand =
  /\\(?:text|textbf|textit|textrm|texttt|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|mbox|operatorname|rm|bf)\*?\s?\{([^{}]*)\}/g;
const degrees = /\^ ?(?:\\circ(?![a-zA-Z])|\{ ?\\circ ?\})|\\degree(?![a-zA-Z])|\\deg(?![a-zA-Z])/g;
const nothing =
  /^(?:\\\{ ?\\\}|\\varnothing|(?:the )?empty set|(?:there (?:is|are) )?no (?:real )?solutions?|no real roots?)$/i;

const multiples = new Map([
  ["thousand", "1000"],
  ["million", "1000000"],
  ["billion", "1000000000"],
  ["trillion", "1000000000000"],
]);

/** @example cleanLatex("$\\boxed{1{,}234\\text{ cm}^2}$") // "1234 cm ^2" */
export function cleanLatex(answer: string): string {
  const text = withoutRepeatingDecimals(unwrap(squeeze(plainCharacters(answer))))
    .replace(/\{,\}(?=\d{3})|,\\!(?=\d{3})|(?<=\d)\\,(?=\d{3}(?!\d))/g, "")
    .replaceAll("{,}", ",")
    .replace(spacing, (found) => (found === "\\\\" ? found : " "))
    .replace(textCommand, " $1 ")
    .replaceAll("\\$", " $ ")
    .replaceAll("\\varnothing", "\\emptyset")
    .replace(degrees, " ° ")
    .replace(/° ?([CF])(?![a-zA-Z])/g, "deg$1")
    .replace(/\{? ?([^{}\\]{1,40}?) ?\\choose(?![a-z]) ?([^{}\\]{1,40}?) ?(?:\}|$)/g, "\\binom{$1}{$2}")
    .replace(
      /(?<=[\d}]) ?(thousand|million|billion|trillion)\b/gi,
      (_, word: string) => ` * ${multiples.get(word.toLowerCase())} `,
    );
  const plain = withoutFullStops(joinThousands(squeeze(text))).replace(/^(?:\\approx(?![a-z])|[≈=]) ?/, "");
  return nothing.test(plain) ? "\\emptyset" : plain;
}

/** Collapses white space, so that later patterns cannot backtrack over blanks. */
const squeeze = (text: string) => text.replace(/\s+/g, " ").trim();

const wrappers = [
  ["$$", "$$"],
  ["$", "$"],
  ["\\(", "\\)"],
  ["\\[", "\\]"],
  ["**", "**"],
  ["__", "__"],
  ["`", "`"],
  ["*", "*"],
] as const;

/** Removes math delimiters, Markdown's emphasis and a box around the whole text. */
function unwrap(text: string): string {
  let inner = text;
  for (;;) {
    const bare = withoutFullStops(inner);
    const box = /^\\f?boxed ?\{/.exec(bare)?.[0];
    const mark = wrappers.find(
      ([open, close]) => bare.length > open.length + close.length && bare.startsWith(open) && bare.endsWith(close),
    );
    if (mark && !bare.slice(mark[0].length, -mark[1].length).includes(mark[0])) {
      inner = bare.slice(mark[0].length, -mark[1].length).trim();
    } else if (box !== undefined && closes(bare, box.length - 1)) inner = bare.slice(box.length, -1).trim();
    else return inner;
  }
}

/** Whether the brace at `open` is closed at the end of the text. */
function closes(text: string, open: number): boolean {
  let depth = 0;
  for (let index = open; index < text.length; index++) {
    if (text[index] === "{") depth++;
    else if (text[index] === "}" && --depth === 0) return index === text.length - 1;
  }
  return false;
}

function withoutFullStops(text: string): string {
  let end = text.length;
  while (end > 0 && ".; ".includes(text[end - 1] ?? "")) end--;
  // The last of three dots belongs to them.
  return text.startsWith("..", end) ? text.trimEnd() : text.slice(0, end);
}

/** "1,234" is one number, except in brackets, as in "(1,234)"; "1, 234" is two. Braces only group. */
function joinThousands(text: string): string {
  if (/^[-−+]? ?(?:\$ ?)?[1-9]\d{0,2}(?: \d{3})+(?:\.\d+)?$/.test(text)) return text.replaceAll(" ", "");
  const inside = new Set<number>();
  let depth = 0;
  for (let index = 0; index < text.length; index++) {
    const piece = text[index] === "\\" ? text.slice(index, index + 2) : text[index];
    if (piece === "(" || piece === "[" || piece === "\\{" || text.startsWith("\\langle", index)) depth++;
    else if (piece === ")" || piece === "]" || piece === "\\}" || text.startsWith("\\rangle", index)) depth--;
    if (depth > 0 && text[index] === ",") inside.add(index);
  }
  return text.replace(/(?<![\d.])\d{1,3}(?:, ?\d{3})+(?!\d)/g, (written, at: number) => {
    const isList = written.includes(" ") || inside.has(at + written.indexOf(","));
    return isList ? written : written.replaceAll(",", "");
  });
}

// A value apart from its unit: "5 cm^2", "$5", "12 red apples".

const spellings: Record<string, string> = {
  "°": "degree|degrees|deg",
  degC: "celsius",
  degF: "fahrenheit",
  "%": "percent|pct",
  $: "dollar|dollars|USD|bucks",
  "€": "euro|euros|EUR",
  "£": "GBP",
  "¥": "yen|yuan",
  "₹": "rupee|rupees|Rs|Rs.",
  cent: "cents|¢",
  cm: "centimeter|centimeters|centimetre|centimetres",
  mm: "millimeter|millimeters|millimetre|millimetres",
  km: "kilometer|kilometers|kilometre|kilometres|kms",
  m: "meter|meters|metre|metres",
  mi: "mile|miles",
  ft: "foot|feet",
  in: "inch|inches",
  yd: "yard|yards|yds",
  kg: "kilogram|kilograms|kgs",
  g: "gram|grams",
  mg: "milligram|milligrams",
  lb: "pound|pounds|lbs",
  oz: "ounce|ounces",
  s: "sec|secs|second|seconds",
  min: "mins|minute|minutes",
  h: "hr|hrs|hour|hours",
  year: "years|yr|yrs",
  L: "liter|liters|litre|litres",
  ml: "mL|milliliter|milliliters|millilitre|millilitres",
  N: "newton|newtons",
  J: "joule|joules",
  W: "watt|watts",
  Hz: "hertz",
  K: "kelvin",
  V: "volt|volts",
  person: "people",
  child: "children",
  man: "men",
  woman: "women",
  "mi/h": "mph",
  "km/h": "kph|kmh",
};

const units = new Map(
  Object.entries(spellings).flatMap(([unit, others]) =>
    [unit, ...others.split("|")].map((name) => [name, unit] as const),
  ),
);

/** Words of three letters that are not products of variables. */
const shortNouns = new Set(
  "cat car cow box day egg hat hen pen pie pig toy tie bag bed boy bus cup dog jar job kid fan man men way".split(" "),
);
/** Words that are part of a value, or of a sentence about it. */
const notUnits = new Set(
  (
    "is are was were be been being not never no nor or and but if unless except than then about almost nearly approximately " +
    "half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths eighth tenth tenths hundredth dozen " +
    "dozens hundred hundreds thousand thousands million billion pi squared cubed factorial mod modulo base plus minus times over more " +
    "less fewer through between wrong incorrect false maybe perhaps either neither both to until infinity undefined"
  ).split(" "),
);

interface Measure {
  text: string;
  /** Undefined for a bare value. Spellings of a unit are unified; units are not converted. */
  unit: string | undefined;
}

const leading = /^(-? ?)(?:(US|CA|AU)? ?([$€£¥₹])|(USD|EUR|GBP|Rs\.?)) ?(?=[\d.])/;
const lastUnit =
  /(?:(?<=[\d})\] /°])|(?<= per )) ?((?:sq|square|cubic)\.? )?([A-Za-z][A-Za-z'-]*|\\?[%$]|[€£¥₹°¢])\.? ?(?:\^ ?(?:\{ ?(-?[1-3]) ?\}|(-?[1-3])))?$/;
const powers = new Map(Object.entries({ sq: "2", square: "2", cubic: "3" }));

export function measure(text: string): Measure {
  const money = leading.exec(text);
  if (money) {
    const [currency, amount] = [units.get(money[3] ?? money[4] ?? ""), measure(text.slice(money[0].length))];
    const each = amount.unit?.startsWith("/") ? amount.unit : "";
    const value = each !== "" || amount.unit === currency ? amount.text : text.slice(money[0].length);
    return { text: `${money[1]}${value}`, unit: `${currency}${each}` };
  }
  const none = { text, unit: undefined };
  const parts: string[] = [];
  let rest = text;
  let found: Measure = none;
  for (let count = 0; count < 6; count++) {
    const part = lastUnit.exec(rest);
    if (!part) break;
    const [written, prefix, name = "", braced, digit] = part;
    const known = units.get(name.replace("\\", "")) ?? units.get(name.toLowerCase());
    const word = name.toLowerCase();
    if (known === undefined && (notUnits.has(word) || !/^[a-z'-]+$/i.test(name))) break;
    const isWord = known !== undefined || name.length > 3 || shortNouns.has(word) || count > 0;
    if (!isWord) break;
    const dimension = powers.get((prefix ?? "").trim().replace(".", "")) ?? braced ?? digit;
    const before = rest.slice(0, part.index);
    parts.unshift(`${known ?? word.replace(/s$/, "")}${dimension === undefined ? "" : `^${dimension}`}`);
    const divided = /(?: ?\/| per)$/.exec(before.trimEnd())?.[0];
    if (divided !== undefined) parts.unshift("/");
    rest = divided === undefined ? before : before.trimEnd().slice(0, -divided.length);
    const value = rest.trim();
    if (value === "") break;
    const apart = before.endsWith(" ") || written.startsWith(" ") || !/^[A-Za-z]/.test(name) || parts[0] === "/";
    // "5m" and "x m" may be products; "5 m" is five meters. An unknown word is a unit only of a number.
    const isClear = known !== undefined && !/^[A-Za-z]{1,2}$/.test(name) && !parts.includes("/") && count === 0;
    if (isClear || (apart && isNumber(value))) found = { text: value, unit: parts.join(" ").replaceAll(" / ", "/") };
  }
  return found;
}

const isNumber = (text: string) => parseExpression(text)?.variables.size === 0;

/** "red apples" are apples; "cm" is not "cm^2". */
export function sameUnit(left: string, right: string): boolean {
  const [long, short] = left.length > right.length ? [left, right] : [right, left];
  return long === short || long.endsWith(` ${short}`) || long.startsWith(`${short} `);
}
