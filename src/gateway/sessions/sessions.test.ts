import { expect, test } from "vitest";
import { createSessions } from "./sessions.ts";

test("the session that has been idle longest, among those opened by a call, is forgotten and can be opened again", () => {
  const opened: string[] = [];
  const forgotten: string[] = [];
  const generate = () => Promise.reject(new Error("not called"));
  const sessions = createSessions(({ session: name, attempt }) => {
    opened.push(name);
    return { name, attempt, session: { generate, reportProblem: () => {} }, onForgotten: () => forgotten.push(name) };
  });
  sessions.open({ name: "mine", attempt: 0, session: { generate, reportProblem: () => {} } });
  const call = (session: string) => sessions.get({ session, attempt: 0 }).name;
  for (let index = 0; index < 10_000; index++) call(`s${index}`);
  call("s0");
  expect(forgotten).toEqual([]);
  call("one more");
  expect([forgotten, sessions.live.length]).toEqual([["s1"], 10_001]);
  expect([call("mine"), call("s0"), call("s1")]).toEqual(["mine", "s0", "s1"]);
  expect([opened.length, forgotten]).toEqual([10_002, ["s1", "s2"]]);
});
