/** Takes from an answer what carries no meaning: mathematics marks, spacing, units, words around it. */

const spacing =
  /\\(?:[!,;:> ]|quad\b|qquad\b|displaystyle\b|limits\b|bigl?\b|bigr\b|Bigl?\b|Bigr\b|left\b\.?|right\b\.?)|~/g;
const wrappers = /^\s*(?:\$\$?([^$]*)\$\$?|\\\(([\s\S]*)\\\)|\\\[([\s\S]*)\\\])\s*[.,;]?\s*$/;
const textCommand =
  /\\(?:text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mbox|operatorname|rm|bf)\s*\{([^{}]*)\}/g;

const unitNames =
  "degrees?|deg|°|cm|mm|km|m|meters?|metres?|centimeters?|centimetres?|kilometers?|kilometres?|miles?|mi|feet|foot|ft|inch(?:es)?|" +
  "yards?|yd|kg|g|mg|grams?|kilograms?|pounds?|lbs?|ounces?|oz|tons?|seconds?|secs?|s|minutes?|mins?|hours?|hrs?|h|days?|weeks?|" +
  "months?|years?|yrs?|dollars?|cents?|euros?|units?|square units?|sq(?:uare)? ?(?:units?|cm|m|ft|feet|inches|meters?)|" +
  "cubic (?:units?|cm|m|ft|feet|inches|meters?)|points?|people|students?|ways?|mph|km/h|m/s|L|liters?|litres?|ml|N|J|W|Hz|K|" +
  "apples?|books?|balls?|marbles?|cookies|coins?|eggs?|pages?|times";
/** After a number, a closing bracket or a blank, at the very end, with an exponent as in cm^2. */
const unit = new RegExp(
  String.raw`(?<=[\d})\]]\s*|\\%\s*)(?<![\^_]\{?)\s*(?:${unitNames})(?:\s*\^\s*\{?[23]\}?|[²³])?\.?$`,
  "i",
);

const multiples: Record<string, string> = { thousand: "000", million: "000000", billion: "000000000" };

export interface Cleaned {
  text: string;
  /** It was written with a percent sign. */
  percent: boolean;
}

/** @example cleanLatex("$\\boxed{1{,}234\\text{ cm}^2}$").text // "1234" */
export function cleanLatex(answer: string): Cleaned {
  let text = unwrap(answer.trim());
  text = text
    .replace(/\\boxed\s*\{([\s\S]*)\}$/, "$1")
    .replace(spacing, (mark) => (/^\\(left|right)\.$/.test(mark) ? "" : " "));
  text = text.replace(textCommand, (_, inner: string) => ` ${inner} `).replaceAll("\\$", "");
  text = text.replace(/\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree\b|°/g, "").replace(/^\s*[$€£]\s*(?=[\d.-])/, "");
  text = text.replace(/(?<=\d)\s*(thousand|million|billion)\b/i, (_, word: string) => multiples[word.toLowerCase()]!);
  text = text.trim().replace(/[.;]+$/, "");
  const percent = /\\?%\s*$/.test(text) || /\bpercent$/i.test(text);
  text = text.replace(/\\?%\s*$/, "").replace(/\s*\bpercent$/i, "");
  text = withoutUnit(text.trim());
  text = text.replaceAll("{,}", ",").replace(/(?<!\d)\d{1,3}(?:,\s?\d{3})+(?!\d)/g, joinThousands);
  return { text: text.replace(/\s+/g, " ").trim(), percent };
}

/** Spaces after the commas make it a list: "1, 234" is two numbers. */
const joinThousands = (written: string) => (/\s/.test(written) ? written : written.replaceAll(",", ""));

function unwrap(text: string): string {
  const inner = wrappers
    .exec(text)
    ?.slice(1)
    .find((group) => group !== undefined);
  return inner === undefined ? text : unwrap(inner.trim());
}

function withoutUnit(text: string): string {
  const without = text.replace(unit, "").trim();
  return without === "" ? text : without;
}
