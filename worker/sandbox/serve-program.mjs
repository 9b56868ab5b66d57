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

/** @param {(name: string) => unknown} lookUp what a name means in the program */
export function openServer(lookUp) {
  const objects = [];
  const numbers = new Map();

  /** The number of an object that stays here, and what it is. */
  function keep(value) {
    if (!numbers.has(value)) numbers.set(value, objects.push(value) - 1);
    const kind = typeof value === "function" ? "a function" : `an object of class ${value?.constructor?.name}`;
    return { object: [numbers.get(value), kind] };
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
      const value = operation === "name" ? lookUp(args[0]) : operations[operation](...args);
      return { value, changed: operation === "call" ? args.slice(2) : [] };
    },
    answer: ({ value, changed }, kind = "value") =>
      JSON.stringify([kind, pack(value), changed.map((each) => (typeof each === "object" ? pack(each) : null))]),
    refusal: (error, kind = "throw") =>
      JSON.stringify([kind, `${error?.name}`, `${error?.message ?? error}`.slice(0, 2000)]),
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
