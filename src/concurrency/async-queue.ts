import { Notifier } from "./notifier.ts";

/**
 * Passes values from callbacks to a reader, in order. The reader waits until there is a value or the queue has ended.
 *
 * @example
 * const lines = new AsyncQueue<string>();
 * stream.on("line", (line) => lines.push(line)).on("error", (error) => lines.fail(error)).on("close", () => lines.end());
 * for await (const line of lines) console.log(line);
 */
export class AsyncQueue<Value extends NonNullable<unknown>> implements AsyncIterable<Value> {
  private readonly values: Value[] = [];
  private readonly changed = new Notifier();
  private ending: { error?: unknown } | undefined;

  /** The number of values that have not been taken so far. */
  get size(): number {
    return this.values.length;
  }

  push(value: Value): void {
    this.values.push(value);
    this.changed.notify();
  }

  /** The reader ends after the values pushed so far. The first `end` or `fail` counts. */
  end(): void {
    this.ending ??= {};
    this.changed.notify();
  }

  /** The reader throws `error` after the values pushed so far. */
  fail(error: unknown): void {
    this.ending ??= { error };
    this.changed.notify();
  }

  /** The reader ends when the work has ended, and throws what it throws. The result only says that it has ended. */
  endWith(work: Promise<unknown>): Promise<void> {
    return work.then(
      () => this.end(),
      (error: unknown) => this.fail(error),
    );
  }

  /** The next value, or undefined after the end. */
  async take(): Promise<Value | undefined> {
    while (true) {
      const value = this.values.shift();
      if (value !== undefined) return value;
      if (this.ending && "error" in this.ending) throw this.ending.error;
      if (this.ending) return undefined;
      await this.changed.wait();
    }
  }

  /** Takes all values that are in the queue now. */
  takeAll(): Value[] {
    return this.values.splice(0);
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Value, void, undefined> {
    for (let value = await this.take(); value !== undefined; value = await this.take()) yield value;
  }
}
