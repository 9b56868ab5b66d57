/** Calls a program's functions as the process at the other end of descriptor 4 asks. Nothing here is trusted. */
import { Socket } from "node:net";
import { createInterface } from "node:readline";
import { decode, encode, NotPlain } from "./plain-data.mjs";

const objects = [];

function keep(value) {
  objects.push(value);
  const kind = typeof value === "function" ? "a function" : `an object of class ${value?.constructor?.name}`;
  return { object: [objects.length - 1, kind] };
}

function refuse(_value, mayBePlain) {
  if (!mayBePlain) throw new NotPlain();
}

function orElse(other, work) {
  try {
    return work();
  } catch {
    return other();
  }
}

const operations = {
  call: (callee, self, ...args) => Reflect.apply(callee, self, args),
  construct: (callee, ...args) => Reflect.construct(callee, args),
  get: (target, key) => target[key],
  iterator: (target) => target[Symbol.iterator],
  set: (target, key, value) => Reflect.set(target, key, value),
  has: (target, key) => key in target,
};

/** @param {(name: string) => unknown} lookUp what a name means in the program */
export async function serve(lookUp) {
  const channel = new Socket({ fd: 4, readable: true, writable: true });
  for await (const line of createInterface({ input: channel })) {
    const [operation, args] = decode(JSON.parse(line), ([number]) => objects[number]);
    let message;
    try {
      const value = operation === "name" ? lookUp(args[0]) : await operations[operation](...args);
      const changed = operation === "call" ? args.slice(2) : [];
      message = [
        "value",
        orElse(
          () => keep(value),
          () => encode(value, refuse),
        ),
        changed.map((each) =>
          orElse(
            () => null,
            () => (typeof each === "object" ? encode(each, refuse) : null),
          ),
        ),
      ];
    } catch (error) {
      message = ["throw", `${error?.name}`, `${error?.message ?? error}`.slice(0, 2000)];
    }
    channel.write(`${JSON.stringify(message)}\n`);
  }
  process.exit(0);
}
