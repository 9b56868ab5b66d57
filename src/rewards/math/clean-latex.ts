/** Removes math delimiters, spacing and fonts from an answer. Never joins two tokens. */

/** The first alternative is a line break, so that its second backslash does not start a command. */
const spacing =
  /\\\\|\\(?:[!,;:> ]|(?:quad|qquad|displaystyle|limits|[bB]igl?|[bB]igr)(?![a-zA-Z])|(?:left|right)(?:\.|(?![a-zA-Z])))|~/g;
const textCommand =
  /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname|rm|bf)\s?\{([^{}]*)\}/g;
const degrees = /\^ ?(?:\\circ(?![a-zA-Z])|\{ ?\\circ ?\})|\\degree(?![a-zA-Z])|\\deg(?![a-zA-Z])/g;

const multiples = new Map([
  ["thousand", "1000"],
  ["million", "1000000"],
  ["billion", "1000000000"],
]);

/** @example cleanLatex("$\\boxed{1{,}234\\text{ cm}^2}$") // "1234 cm ^2" */
export function cleanLatex(answer: string): string {
  const text = unwrap(squeeze(answer))
    .replace(/\{,\}(?=\d{3})|,\\!(?=\d{3})|(?<=\d)\\,(?=\d{3}(?!\d))/g, "")
    .replaceAll("{,}", ",")
    .replace(spacing, (found) => (found === "\\\\" ? found : " "))
    .replace(textCommand, " $1 ")
    .replaceAll("\\$", " $ ")
    .replace(degrees, " ° ")
    .replace(
      /(?<=[\d}]) ?(thousand|million|billion)\b/gi,
      (_, word: string) => ` * ${multiples.get(word.toLowerCase())} `,
    );
  return withoutFullStops(joinThousands(squeeze(text)));
}

/** Collapses white space, so that later patterns cannot backtrack over blanks. */
const squeeze = (text: string) => text.replace(/\s+/g, " ").trim();

const wrappers = [
  ["$$", "$$"],
  ["$", "$"],
  ["\\(", "\\)"],
  ["\\[", "\\]"],
] as const;

/** Removes math delimiters and a box around the whole text. */
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
  return text.slice(0, end);
}

/** "1,234" is one number, except in brackets, as in "(1,234)"; "1, 234" is two. Braces only group. */
function joinThousands(text: string): string {
  const inside = new Set<number>();
  let depth = 0;
  for (let index = 0; index < text.length; index++) {
    const piece = text[index] === "\\" ? text.slice(index, index + 2) : text[index];
    if (piece === "(" || piece === "[" || piece === "\\{") depth++;
    else if (piece === ")" || piece === "]" || piece === "\\}") depth--;
    if (depth > 0 && text[index] === ",") inside.add(index);
  }
  return text.replace(/(?<![\d.])\d{1,3}(?:, ?\d{3})+(?!\d)/g, (written, at: number) => {
    const isList = written.includes(" ") || inside.has(at + written.indexOf(","));
    return isList ? written : written.replaceAll(",", "");
  });
}
