/** Runs what an attempt registered for its end: in reverse order, each within a time limit. */

export interface TearDown {
  /** After the end, `clean` runs at once. */
  register(clean: () => void | Promise<void>): void;
  /** @returns what went wrong; never throws */
  run(): Promise<string[]>;
}

export function createTearDown(seconds: number): TearDown {
  const registered: (() => void | Promise<void>)[] = [];
  let ended = false;
  return {
    register(clean) {
      if (ended) void attempt(clean, seconds);
      else registered.push(clean);
    },
    async run() {
      ended = true;
      const problems: string[] = [];
      for (const clean of registered.splice(0).reverse()) {
        const problem = await attempt(clean, seconds);
        if (problem !== undefined) problems.push(problem);
      }
      return problems;
    },
  };
}

async function attempt(clean: () => void | Promise<void>, seconds: number): Promise<string | undefined> {
  let timer: NodeJS.Timeout | undefined;
  const timeIsUp = new Promise<string>((resolve) => {
    timer = setTimeout(
      () => resolve(`took longer than ${seconds} s and was not waited for any longer`),
      seconds * 1000,
    );
  });
  try {
    return await Promise.race([(async () => void (await clean()))(), timeIsUp]);
  } catch (error) {
    return `threw ${error instanceof Error ? `${error.name}: ${error.message}` : String(error)}`;
  } finally {
    clearTimeout(timer);
  }
}
