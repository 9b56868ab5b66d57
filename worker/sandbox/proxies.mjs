/**
 * What a test can do with those values of a program that are not plain data: they stay in the program's process.
 *
 * A program may return any object where the test expects plain data. So that its class cannot decide the verdict, an object
 * never receives the test's data in a conversion or a method of a plain type. docs/decisions/code-tests.md explains the rule.
 */
import { decode, encode } from "./plain-data.mjs";

const plainTypes = [Array, String, Number, Boolean, BigInt, Map, Set, Date, RegExp, Promise, Object];
// Newer methods of sets, and usual names of comparisons.
const morePlainNames =
  "union intersection difference symmetricDifference isSubsetOf isSupersetOf isDisjointFrom equals equal eq isEqual same sameAs isSame isClose compare contains matches";
const plainNames = new Set([
  ...plainTypes.flatMap(({ prototype }) => Object.getOwnPropertyNames(prototype)),
  ...morePlainNames.split(" "),
]);
const plainProperties = new Set(["length", "size"]);
// They pass no data that the test expects: it adds the arguments, or passes none.
const adding = new Set(["push", "unshift", "add", "set"]);
const withoutArguments = new Set(["pop", "shift", "clear", "toString", ...plainProperties]);
const className = /^[_$]*[A-Z][A-Za-z0-9]*$/;
const builtInErrors = { Error, EvalError, RangeError, ReferenceError, SyntaxError, TypeError, URIError };

/** The program ended, or does not follow the protocol. */
export class ProgramEnded extends Error {}

/** The test cannot grade any program. */
export class BrokenTest extends Error {}

/**
 * One test of one program.
 *
 * @param {(line: string) => string | undefined} exchange sends a line to the program and returns its answer
 * @param {string} source the test
 */
export function openSession(exchange, source) {
  /** `used`: whether the program has been used; `wrong` and `broken`: a verdict, even if the test catches the exception. */
  const session = { used: false, ran: false, wrong: undefined, broken: undefined, ask, named };
  const numbers = new WeakMap();
  /** Classes that the test names. They are looked up before anything else, so that the program cannot choose later what they mean. */
  const classes = new Map();

  function wrong(error) {
    session.wrong ??= error.message;
    return error;
  }

  function pack(value, mayBePlain) {
    const number = numbers.get(value);
    if (number !== undefined) return { object: [number, ""] };
    if (mayBePlain) return undefined;
    const kind = typeof value === "function" ? "functions" : "objects of classes";
    const why = `the test passes ${kind} of its own to the program, but only plain data can be passed`;
    // Before the program has returned a value, only the test is to blame for what it passes.
    if (session.ran) throw wrong(new TypeError(why));
    session.broken ??= why;
    throw new BrokenTest(session.broken);
  }

  function ask(operation, ...args) {
    if (!session.used) {
      session.used = true;
      for (const [name] of source.matchAll(/(?<![.\w$])[_$]*[A-Z][\w$]*/g)) {
        if (classes.has(name) || Object.getOwnPropertyDescriptor(globalThis, name)?.value !== undefined) continue;
        classes.set(name, undefined);
        try {
          classes.set(name, withRole(ask("name", name), className.test(name) ? "class" : ""));
        } catch {}
      }
    }
    // A name, or an object's method, is also asked for before its arguments are known.
    const ranBefore = session.ran || (operation !== "name" && operation !== "get" && !fromName.has(args[0]));
    session.ran = ranBefore;
    const answer = exchange(JSON.stringify(encode([operation, args], pack)));
    if (answer === undefined) throw wrong(new ProgramEnded("the program ended"));
    session.ran ||= operation !== "name" && operation !== "get";
    let [kind, content, more] = [];
    try {
      [kind, content, more] = JSON.parse(answer);
      [content, more] = [decode(content, unpack), more.map((each) => decode(each, unpack))];
    } catch {
      throw wrong(new ProgramEnded("the program's answer is not plain data"));
    }
    if (kind === "reject") return Promise.reject(content);
    if (kind !== "value" && kind !== "resolve") throw content;
    for (const [index, changed] of more.entries()) update(args[index + 2], changed);
    return kind === "resolve" ? Promise.resolve(content) : content;
  }

  /** A function that modifies its arguments has modified copies; this repeats the changes in the test. */
  function update(old, changed) {
    if (numbers.has(old) || typeof changed !== "object" || changed === null) return;
    const text = (value) => JSON.stringify(encode(value, pack));
    if (text(old) === text(changed)) return;
    if (Array.isArray(old) && Array.isArray(changed)) old.splice(0, old.length, ...changed);
    else if (old instanceof Map && changed instanceof Map) {
      old.clear();
      for (const [key, value] of changed) old.set(key, value);
    } else if (old instanceof Set && changed instanceof Set) {
      old.clear();
      for (const value of changed) old.add(value);
    } else if (Object.getPrototypeOf(old ?? 0) === Object.prototype) {
      for (const key of Object.keys(old)) delete old[key];
      for (const [key, value] of Object.entries(changed))
        Object.defineProperty(old, key, { value, writable: true, enumerable: true, configurable: true });
    }
  }

  /** A name of the program that the test uses. Its spelling in the test, not the program, says that it is a class. */
  function named(name) {
    const known = classes.get(name);
    if (known !== undefined) return known;
    const value = withRole(ask("name", name), className.test(name) ? "class" : "");
    if (numbers.has(value)) fromName.add(value);
    return value;
  }

  function unpack(content, tag) {
    return tag === "error" ? errorOf(content) : proxyOf(content);
  }

  /** An error of this process's own, of the first of its classes that the language has. */
  function errorOf([number, names, name, message, properties]) {
    const known = names.find((each) => Object.hasOwn(builtInErrors, each)) ?? "Error";
    const error = new builtInErrors[known](`${message}`);
    if (error.name !== name) Object.defineProperty(error, "name", { value: `${name}`, configurable: true });
    const plain = decode(properties, unpack);
    if (typeof plain === "object" && plain !== null && !numbers.has(plain)) Object.assign(error, plain);
    numbers.set(error, number);
    if (names[0] !== known) {
      const own = classes.get(`${names[0]}`) ?? { name: `${names[0]}` };
      Object.defineProperty(error, "constructor", { value: own, configurable: true });
    }
    return error;
  }

  const roles = new WeakMap();
  /** Functions that the test uses by their names. */
  const fromName = new WeakSet();
  const owners = new WeakMap();

  function withRole(value, role) {
    if (role !== "" && numbers.has(value)) roles.set(value, role);
    if (role === "class" && numbers.has(value)) fromName.add(value);
    return value;
  }

  /** Whether the test writes `.key` or `{ key } =`: a key that it computes may be data that it expects. */
  function isWritten(key) {
    if (["next", "return", "done", "value"].includes(key)) return true; // read by loops
    if (!/^[\w$]+$/.test(key) || /^\d/.test(key)) return false;
    const name = `${key.replaceAll("$", "\\$")}(?![\\w$])`;
    return new RegExp(`\\.\\s*${name}|\\{[^{}]*(?<![\\w$])${name}[^{}]*\\}\\s*=(?!=)`).test(source);
  }

  /**
   * A value of the program that is not plain data. Its role: `class`, `constructed` by calling a class, `plain` for a method
   * with the name of a plain type's, `add` for one that has no result, `bare` for one without arguments, or empty.
   */
  function proxyOf([number, kind]) {
    const refuse = () => {
      throw wrong(new TypeError(`${kind} of the program is not plain data, so it cannot be used as such`));
    };
    let said;
    const text = (hint) => {
      const answer = hint === "string" ? ask("text", self) : refuse();
      // As for iterators: each check of a result would see another text.
      said = isTrusted() ? answer : (said ?? answer);
      return typeof answer === "string" && answer === said ? answer : refuse();
    };
    const isTrusted = () => ["class", "constructed"].includes(roles.get(self));
    let iterated = false;
    const get = (_target, key) => {
      if (key === Symbol.iterator || key === Symbol.asyncIterator) {
        const iterate = ask(key === Symbol.iterator ? "iterator" : "asyncIterator", self);
        // Once, so that an object cannot show a different content to each check of a result.
        if (iterate !== undefined && iterated && !isTrusted()) refuse();
        iterated ||= iterate !== undefined;
        return iterate;
      }
      if (key === Symbol.toPrimitive) return text;
      // Whether the class of a value is this one or extends it, which its classes' numbers tell.
      if (key === Symbol.hasInstance && callable) {
        return (value) => numbers.has(value) && ask("classes", value).includes(numbers.get(self));
      }
      // Nothing awaits an object, since promises of the program are awaited before.
      if (typeof key === "symbol" || key === "then") return undefined;
      if (isTrusted()) {
        const isClass = roles.get(self) === "class" && className.test(key);
        const result = withRole(ask("get", self, key), isClass ? "class" : "");
        if (roles.get(self) === "constructed" && adding.has(key) && numbers.has(result)) owners.set(result, self);
        return result;
      }
      if (!isWritten(key)) refuse();
      const result = ask("get", self, key);
      if (!plainNames.has(key)) return result;
      if (adding.has(key)) return withRole(result, "add");
      if (plainProperties.has(key) && !numbers.has(result)) refuse();
      return withRole(result, withoutArguments.has(key) ? "bare" : "plain");
    };
    const apply = (_target, receiver, args) => {
      const role = roles.get(self);
      if (role === "plain" || (role === "bare" && args.length > 0)) refuse();
      const result = ask("call", self, numbers.has(receiver) ? receiver : undefined, ...args);
      // A method such as `push` that returns its object.
      const owner = owners.get(self);
      if (role === "add" && !numbers.has(result)) return undefined;
      return owner && numbers.has(result) && numbers.get(result) === numbers.get(owner) ? owner : result;
    };
    const callable = kind === "a function";
    const self = new Proxy(callable ? function proxyOf() {} : {}, {
      apply,
      construct: (_target, args) => {
        const made = ask("construct", self, ...args);
        return numbers.has(made) ? withRole(made, "constructed") : refuse();
      },
      get,
      set: (_target, key, value) => ask("set", self, String(key), value),
      has: (_target, key) => (isTrusted() ? ask("has", self, String(key)) === true : refuse()),
      getPrototypeOf: refuse,
      setPrototypeOf: refuse,
      isExtensible: refuse,
      preventExtensions: refuse,
      ownKeys: refuse,
      getOwnPropertyDescriptor: refuse,
      defineProperty: refuse,
      deleteProperty: refuse,
    });
    numbers.set(self, number);
    return self;
  }

  return session;
}
