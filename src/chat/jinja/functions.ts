/** The functions that every chat template can call. */

import { bind, fromKeys, pairOf } from "./members.ts";
import {
  asInteger,
  type CallArguments,
  Callable,
  Dict,
  fail,
  listOf,
  Namespace,
  paid,
  Range,
  represent,
  Special,
  spend,
  typeName,
  type Value,
  write,
} from "./values.ts";

// Functions.

class Cycler extends Special {
  private at = 0;
  private readonly items: readonly Value[];
  constructor(items: readonly Value[]) {
    super();
    this.items = items;
  }

  attribute(name: string): Value | undefined {
    if (name === "current") return this.items[this.at];
    if (name === "reset")
      return new Callable(name, () => {
        this.at = 0;
        return null;
      });
    if (name !== "next") return undefined;
    return new Callable(name, () => {
      const value = this.items[this.at];
      this.at = (this.at + 1) % this.items.length;
      return value;
    });
  }

  written(): string {
    return "<jinja2.utils.Cycler object at 0x7f0000000000>";
  }
}

const callable = (name: string, signature: string, implementation: (...args: Value[]) => Value) =>
  new Callable(name, (args) => implementation(...bind(name, signature, args)));

function dictOf({ positional, named }: CallArguments): Dict {
  if (positional.length > 1) fail("TypeError", `dict expected at most 1 argument, got ${positional.length}`);
  const [given] = positional;
  const pairs = given === undefined ? [] : given instanceof Dict ? given.pairs() : listOf(given).map(pairOf);
  return Dict.from([...pairs, ...named]);
}

/** @param now the time of the rendering */
export function globalsAt(now: Date): ReadonlyMap<string, Value> {
  const namespace = new Callable("namespace", (args) => {
    const attributes = new Map<string, Value>();
    for (const [key, value] of dictOf(args).pairs()) attributes.set(checkAttribute(write(key)), value);
    return new Namespace(attributes);
  });
  const joiner = new Callable("joiner", (args) => {
    const [separator = ", "] = bind("joiner", "sep?", args);
    let used = false;
    return new Callable("joiner", () => {
      const text = used ? separator : "";
      used = true;
      return text;
    });
  });
  const functions = [
    callable("range", "/ start stop? step?", (first, second, step = 1n) => {
      const [start, stop] = second === undefined ? [0n, first] : [first, second];
      const parts = [start, stop, step].map((part) => {
        return asInteger(part) ?? fail("TypeError", `'${typeName(part)}' object cannot be interpreted as an integer`);
      }) as [bigint, bigint, bigint];
      return new Range(...parts);
    }),
    new Callable("dict", dictOf, new Map([["fromkeys", fromKeys]])),
    namespace,
    new Callable("cycler", ({ positional }) =>
      positional.length > 0 ? new Cycler(positional) : fail("RuntimeError", "at least one item has to be provided"),
    ),
    joiner,
    callable("raise_exception", "message", (message) => {
      throw new Error(write(message));
    }),
    callable("strftime_now", "format", (format) => writeTime(write(format), now)),
    callable("lipsum", "n? html? min? max?", () => fail("NotSupported", "lipsum() writes random text")),
  ];
  return new Map(functions.map((one) => [one.name, one]));
}

/** Names with an underscore are refused, as in transformers. */
export function checkAttribute(name: string): string {
  return name.startsWith("_")
    ? fail("SecurityError", `a namespace cannot have the attribute ${represent(name)}`)
    : name;
}

const days = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const months = "January February March April May June July August September October November December".split(" ");

/** Python's `strftime` in the C locale. */
function writeTime(format: string, now: Date): string {
  const two = (value: number, fill = "0") => String(value).padStart(2, fill);
  const [hours, year] = [now.getHours(), now.getFullYear()];
  const start = new Date(year, 0, 1);
  const day = Math.round((new Date(year, now.getMonth(), now.getDate()).getTime() - start.getTime()) / 86_400_000) + 1;
  const isoDay = now.getDay() || 7;
  const thursday = new Date(year, now.getMonth(), now.getDate() + 4 - isoDay);
  const isoYear = thursday.getFullYear();
  const isoWeek = Math.ceil(((thursday.getTime() - new Date(isoYear, 0, 1).getTime()) / 86_400_000 + 1) / 7);
  const all: Record<string, () => string> = {
    a: () => (days[now.getDay()] ?? "").slice(0, 3),
    A: () => days[now.getDay()] ?? "",
    b: () => (months[now.getMonth()] ?? "").slice(0, 3),
    h: () => (months[now.getMonth()] ?? "").slice(0, 3),
    B: () => months[now.getMonth()] ?? "",
    c: () => writeTime("%a %b %e %H:%M:%S %Y", now),
    C: () => two(Math.floor(year / 100)),
    d: () => two(now.getDate()),
    D: () => writeTime("%m/%d/%y", now),
    e: () => two(now.getDate(), " "),
    f: () => String(now.getMilliseconds() * 1000).padStart(6, "0"),
    F: () => writeTime("%Y-%m-%d", now),
    g: () => two(isoYear % 100),
    G: () => String(isoYear),
    H: () => two(hours),
    I: () => two(hours % 12 || 12),
    j: () => String(day).padStart(3, "0"),
    k: () => two(hours, " "),
    l: () => two(hours % 12 || 12, " "),
    m: () => two(now.getMonth() + 1),
    M: () => two(now.getMinutes()),
    n: () => "\n",
    p: () => (hours < 12 ? "AM" : "PM"),
    P: () => (hours < 12 ? "am" : "pm"),
    r: () => writeTime("%I:%M:%S %p", now),
    R: () => writeTime("%H:%M", now),
    s: () => String(Math.floor(now.getTime() / 1000)),
    S: () => two(now.getSeconds()),
    t: () => "\t",
    T: () => writeTime("%H:%M:%S", now),
    u: () => String(isoDay),
    U: () => two(Math.floor((day + 6 - now.getDay()) / 7)),
    V: () => two(isoWeek),
    w: () => String(now.getDay()),
    W: () => two(Math.floor((day + 6 - ((now.getDay() + 6) % 7)) / 7)),
    x: () => writeTime("%m/%d/%y", now),
    X: () => writeTime("%H:%M:%S", now),
    y: () => two(year % 100),
    Y: () => String(year),
    // A time without a zone.
    z: () => "",
    Z: () => "",
    "%": () => "%",
  };
  return paid(format).replace(/%([-_0^#]?)([\s\S])/g, (whole_, flag: string, letter: string) => {
    spend(50);
    const write_ = Object.hasOwn(all, letter) ? all[letter] : undefined;
    if (!write_) return whole_;
    const text = paid(write_());
    if (flag === "-") return text.replace(/^[0 ]+(?=\d)/, "");
    if (flag === "_") return text.replace(/^0+(?=\d)/, (zeros) => " ".repeat(zeros.length));
    return flag === "^" || flag === "#"
      ? text.toUpperCase()
      : flag === "0"
        ? text.replace(/^ +/, (blanks) => "0".repeat(blanks.length))
        : text;
  });
}
