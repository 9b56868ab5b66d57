/** Plain data as JSON: what passes between a program under test and the process that checks it. */

export class NotPlain extends Error {}

/** @param {(value: object) => unknown} packObject turns what is not plain into JSON, or throws NotPlain */
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
    if (Array.isArray(value)) return again(value);
    const prototype = Object.getPrototypeOf(value);
    if (prototype === Map.prototype) return { map: again(value) };
    if (prototype === Set.prototype) return { set: again(value) };
    if (prototype === Object.prototype || prototype === null) return { record: again(Object.entries(value)) };
  }
  return packObject(value, false);
}

export function decode(value, unpackObject) {
  if (Array.isArray(value)) return value.map((item) => decode(item, unpackObject));
  if (typeof value !== "object" || value === null) return value;
  const [[tag, content]] = Object.entries(value);
  if (tag === "object") return unpackObject(content);
  if (tag === "undefined") return undefined;
  if (tag === "bigint") return BigInt(content);
  if (tag === "number") return Number(content);
  const items = decode(content, unpackObject);
  if (tag === "map") return new Map(items);
  if (tag === "set") return new Set(items);
  if (tag === "record") return Object.fromEntries(items);
  throw new TypeError(`unknown tag ${tag}`);
}
