/** For off-thread.test.ts: loaded in threads of their own. */
export const double = async (value: number): Promise<number> => 2 * value;

export function fail(message: string): never {
  throw new TypeError(message);
}

export function hang(): never {
  for (;;);
}

export const leave = () => process.exit(3);
