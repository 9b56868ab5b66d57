/** Plain data as JSON: what passes between a program under test and the process that checks it. */

/** Of a typed array's class itself, since a subclass has behavior of its own. */
function typedName(value) {
  if (!ArrayBuffer.isView(value) || value instanceof DataView) return undefined;
  return Buffer.isBuffer(value) ? "Buffer" : tagOf(value);
}

const tagOf = Function.prototype.call.bind(
  Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get,
);

/** @param {(value: object, mayBePlain: boolean) => unknown} packObject turns what is not plain into JSON, or throws */
export function encode(value, packObject) {
  const again = (items) => Array.from(items, (item) => encode(item, packObject));
  if (value === null || typeof value === "boolean" || typeof value === "string") return value;
  if (value === undefined) return { undefined: true };
  if (typeof value === "bigint") return { bigint: `${value}` };
  if (typeof value === "number") {
    return Number.isFinite(value) && !Object.is(value, -0)
      ? value
      : { number: Object.is(value, -0) ? "-0" : `${value}` };
  }
  if (typeof value === "object") {
    const packed = packObject(value, true);
    if (packed !== undefined) return packed;
    if (Array.isArray(value)) return again(Array.prototype.values.call(value));
    if (value instanceof Map) return { map: again(Map.prototype.entries.call(value)) };
    if (value instanceof Set) return { set: again(Set.prototype.values.call(value)) };
    if (value instanceof Date) return { date: Date.prototype.getTime.call(value) };
    const typed = typedName(value);
    if (typed !== undefined) return { typed: [typed, again(Array.prototype.values.call(value))] };
    if (value instanceof RegExp) return { regexp: [`${value.source}`, `${value.flags}`] };
    const prototype = Object.getPrototypeOf(value);
    if (prototype === Object.prototype || prototype === null) {
      const entries = Object.entries(value);
      // A record with functions has state that these functions share, so it stays where it is.
      if (!entries.some(([, item]) => typeof item === "function")) return { record: again(entries) };
    }
  }
  return packObject(value, false);
}

const typedArrays = Object.fromEntries(
  [
    ...[Int8Array, Uint8Array, Uint8ClampedArray, Int16Array, Uint16Array, Int32Array, Uint32Array],
    ...[Float32Array, Float64Array, BigInt64Array, BigUint64Array, Buffer],
  ].map((kind) => [kind.name, kind]),
);

export function decode(value, unpackObject) {
  if (Array.isArray(value)) return value.map((item) => decode(item, unpackObject));
  if (typeof value !== "object" || value === null) return value;
  const [[tag, content]] = Object.entries(value);
  if (tag === "object" || tag === "error") return unpackObject(content, tag);
  if (tag === "undefined") return undefined;
  if (tag === "bigint") return BigInt(content);
  if (tag === "number") return Number(content);
  if (tag === "date") return new Date(content ?? Number.NaN);
  const items = decode(content, unpackObject);
  if (tag === "map") return new Map(items);
  if (tag === "set") return new Set(items);
  if (tag === "regexp") return new RegExp(...items);
  if (tag === "typed") return typedArrays[items[0]].from(items[1]);
  if (tag === "record") {
    // `encode` never sends one, but a program can: its functions would be methods, such as `includes`, of plain data.
    if (items.some(([, item]) => typeof item === "function")) throw new TypeError("a record has functions");
    return Object.fromEntries(items);
  }
  throw new TypeError(`unknown tag ${tag}`);
}
