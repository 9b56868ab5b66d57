/** The value of a record's own key. Names from outside, such as `constructor`, must not reach the prototype. */
export function own<Value>(record: Readonly<Record<string, Value>> | undefined, key: string): Value | undefined {
  return record !== undefined && Object.hasOwn(record, key) ? record[key] : undefined;
}
