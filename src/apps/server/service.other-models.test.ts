/** Other models of a Tinker service, which are not trained: teachers and references. */
import { mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import type { Engine } from "../../backends/engine.ts";
import { learnerTeacher } from "../../backends/teachers.ts";
import { memory, temporaryFolder } from "../../temporary-folder.fixture.ts";
import { tabularEngine } from "../../testing/tabular-engine.ts";
import { openTinker } from "./tinker-engine.fixture.ts";

const root = temporaryFolder("other-models", memory);

/** A model with a tokenizer's file, for the comparison of vocabularies. */
function model(name: string, vocab: Record<string, number>, strength: number): Engine {
  const directory = join(root, name);
  mkdirSync(directory);
  writeFileSync(join(directory, "tokenizer.json"), JSON.stringify({ model: { vocab } }));
  const engine = tabularEngine({ alphabet: "abc", logit: (next) => strength * next });
  return { ...engine, model: { ...engine.model, directory, maxLength: 100 } };
}

test("score tokens as they do at home, and are refused if their vocabulary differs", async () => {
  const [tiny, strong] = [model("tiny", { a: 0 }, 0), model("strong", { a: 0 }, 0.5)];
  const odd = model("odd", { b: 0 }, 1);
  const engines = Object.entries({ tiny, strong, odd }).map(([name, engine]) => ({ names: [name], engine }));
  const { engine, close } = await openTinker({ stateFolder: join(root, "state"), inner: tiny, server: { engines } });
  const sequences = [{ tokens: Int32Array.of(1, 2, 3, 4), trained: Uint8Array.of(0, 1, 1) }];
  const base = { kind: "none" } as const;
  const there = learnerTeacher(await engine.createLearner({ adapter: base, model: "strong" }));
  const here = learnerTeacher(await strong.createLearner({ adapter: base }));
  expect(there.maxLength).toBe(99);
  expect([...(await there.logprobs(sequences))]).toEqual(
    Array.from(await here.logprobs(sequences), (value) => expect.closeTo(value, 5)),
  );
  const [own, theirs] = [await here.mostLikely!(sequences, 3), await there.mostLikely!(sequences, 3)];
  expect([...theirs.tokens]).toEqual([...own.tokens]);
  expect([...theirs.logprobs]).toEqual(Array.from(own.logprobs, (value) => expect.closeTo(value, 5)));

  const create = (name: string) => engine.createLearner({ adapter: base, model: name });
  await expect(create("odd")).rejects.toThrow("odd has a different vocabulary from tiny");
  await expect(create("absent")).rejects.toThrow('does not serve "absent"');
  await close();
});
