/** Calls a program's functions as the process at the other end of descriptor 4 asks. Nothing here is trusted. */
import { Socket } from "node:net";
import { createInterface } from "node:readline";
import { decode, encode } from "./plain-data.mjs";

const operations = {
  call: (callee, self, ...args) => Reflect.apply(callee, self, args),
  construct: (callee, ...args) => Reflect.construct(callee, args),
  get: (target, key) => target[key],
  iterator: (target) => target[Symbol.iterator],
  asyncIterator: (target) => target[Symbol.asyncIterator],
  text: (target) => `${target}`,
  set: (target, key, value) => Reflect.set(target, key, value),
  has: (target, key) => key in target,
};

/** The classes of an object, or of a class itself. */
function classesOf(value) {
  const classes = [];
  const isClass = typeof value === "function";
  for (let each = isClass ? value : Object.getPrototypeOf(value); each && classes.length < 100; ) {
    classes.push(isClass ? each : each.constructor);
    each = Object.getPrototypeOf(each);
  }
  return classes.filter((each) => typeof each === "function");
}

/** @param {(name: string) => unknown} lookUp what a name means in the program */
export function openServer(lookUp) {
  const objects = [];
  const numbers = new Map();

  function numberOf(value) {
    if (!numbers.has(value)) numbers.set(value, objects.push(value) - 1);
    return numbers.get(value);
  }

  /** The number of an object that stays here, and what it is. */
  function keep(value) {
    numberOf(value);
    if (value instanceof Error) return describe(value);
    const kind = typeof value === "function" ? "a function" : `an object of class ${value?.constructor?.name}`;
    return { object: [numbers.get(value), kind] };
  }

  /** An error: its number, the names of its classes, its name, message and other properties. */
  function describe(error) {
    const names = classesOf(error).map(({ name }) => `${name}`);
    const plain = Object.entries(error).filter(([key]) => !["name", "message", "stack"].includes(key));
    const properties = Object.fromEntries(plain.map(([key, value]) => [key, value === error ? undefined : value]));
    return { error: [numberOf(error), names, `${error.name}`, `${error.message}`.slice(0, 2000), pack(properties)] };
  }

  function pack(value) {
    try {
      return encode(value, (each, mayBePlain) => (mayBePlain ? undefined : keep(each)));
    } catch {
      return keep(value);
    }
  }

  return {
    /** The result, which may be a promise, and the arguments that it may have changed. */
    perform(line) {
      const [operation, args] = decode(JSON.parse(line), ([number]) => objects[number]);
      const value =
        operation === "name"
          ? lookUp(args[0])
          : operation === "classes"
            ? classesOf(args[0]).map(numberOf)
            : operations[operation](...args);
      return { value, changed: operation === "call" ? args.slice(2) : [] };
    },
    answer: ({ value, changed }, kind = "value") =>
      JSON.stringify([kind, pack(value), changed.map((each) => (typeof each === "object" ? pack(each) : null))]),
    refusal(error, kind = "throw") {
      try {
        if (error instanceof Error) return JSON.stringify([kind, describe(error), []]);
        if (typeof error !== "function") return JSON.stringify([kind, pack(error), []]);
      } catch {}
      return JSON.stringify([
        kind,
        { error: [0, ["Error"], "Error", `${error?.message ?? "an error"}`.slice(0, 2000), { record: [] }] },
        [],
      ]);
    },
  };
}

export async function serve(lookUp) {
  const { perform, answer, refusal } = openServer(lookUp);
  const channel = new Socket({ fd: 4, readable: true, writable: true });
  for await (const line of createInterface({ input: channel })) {
    let [reply, later] = ["", false];
    try {
      const { value, changed } = perform(line);
      // The test gets a promise too, which is settled already.
      later = typeof value?.then === "function";
      reply = answer({ value: await value, changed }, later ? "resolve" : "value");
    } catch (error) {
      reply = refusal(error, later ? "reject" : "throw");
    }
    channel.write(`${reply}\n`);
  }
  process.exit(0);
}
