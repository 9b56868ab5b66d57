/** Splits an answer such as "5 cm^2" or "$5" into its value and its unit. */
import { parseExpression } from "./parse.ts";

const spellings: Record<string, string> = {
  "°": "degree|degrees|deg",
  "%": "percent",
  $: "dollar|dollars",
  "€": "euro|euros",
  "£": "",
  cent: "cents",
  cm: "centimeter|centimeters|centimetre|centimetres",
  mm: "millimeter|millimeters|millimetre|millimetres",
  km: "kilometer|kilometers|kilometre|kilometres",
  m: "meter|meters|metre|metres",
  mi: "mile|miles",
  ft: "foot|feet",
  in: "inch|inches",
  yd: "yard|yards",
  kg: "kilogram|kilograms",
  g: "gram|grams",
  mg: "milligram|milligrams",
  lb: "pound|pounds|lbs",
  oz: "ounce|ounces",
  ton: "tons",
  s: "sec|secs|second|seconds",
  min: "mins|minute|minutes",
  h: "hr|hrs|hour|hours",
  day: "days",
  week: "weeks",
  month: "months",
  year: "years|yr|yrs",
  unit: "units",
  mph: "",
  "km/h": "",
  "m/s": "",
  L: "liter|liters|litre|litres",
  ml: "milliliter|milliliters|millilitre|millilitres",
  N: "",
  J: "",
  W: "",
  Hz: "",
  K: "",
  point: "points",
  person: "people",
  student: "students",
  way: "ways",
  time: "times",
  apple: "apples",
  book: "books",
  ball: "balls",
  marble: "marbles",
  cookie: "cookies",
  coin: "coins",
  egg: "eggs",
  page: "pages",
};

const units = new Map(
  Object.entries(spellings).flatMap(([unit, others]) =>
    [unit, ...others.split("|")].map((name) => [name, unit] as const),
  ),
);
units.delete("");

const trailing =
  /(?<=[\d})\] ]) ?((?:sq|square|cubic)\.? )?([A-Za-z]+(?:\/[a-z])?|\\?[%$]|[€£°]) ?(?:\^ ?(?:\{ ?([23]) ?\}|([23]))|([²³]))?$/;
const leading = /^(-? ?)([$€£]) ?(?=[\d.])/;
const powers = new Map(Object.entries({ sq: "2", square: "2", cubic: "3", "²": "2", "³": "3" }));

export interface Measure {
  text: string;
  /** Undefined for a bare value. Spellings of a unit are unified; units are not converted. */
  unit: string | undefined;
}

export function measure(text: string): Measure {
  const money = leading.exec(text);
  if (money) return { text: `${money[1]}${text.slice(money[0].length)}`, unit: units.get(money[2] ?? "") };
  const found = trailing.exec(text);
  const none = { text, unit: undefined };
  if (!found) return none;
  const [, prefix, name = "", braced, digit, raised] = found;
  const unit = units.get(name.replace("\\", "")) ?? units.get(name.toLowerCase());
  const value = text.slice(0, found.index).trim();
  if (unit === undefined || value === "" || (isLetter(name) && !isNumber(text.slice(0, found.index), found[0])))
    return none;
  const dimension = powers.get((prefix ?? "").trim().replace(".", "")) ?? powers.get(raised ?? "") ?? braced ?? digit;
  return { text: value, unit: dimension === undefined ? unit : `${unit}^${dimension}` };
}

/** "5m" and "x m" may be products; "5 m" is five meters. */
const isLetter = (name: string) => /^[A-Za-z]{1,2}$/.test(name);
const isNumber = (before: string, unit: string) =>
  (before.endsWith(" ") || unit.startsWith(" ")) && parseExpression(before)?.variables.size === 0;
