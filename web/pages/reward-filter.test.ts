import { expect, test } from "vitest";
import { clauseOf, joinFilter, splitFilter, unknownClause } from "./reward-filter.ts";

const bars = [
  clauseOf({ low: 1, high: 1 }, true),
  clauseOf({ low: -0.5, high: 1e-7 }, false),
  clauseOf({ low: 0.2, high: 0.4 }, true),
  unknownClause,
];

test("a bar as a filter", () =>
  expect(bars).toEqual(["reward=1", "reward>=-0.5 and reward<1e-7", "reward>=0.2 and reward<=0.4", "reward=unknown"]));

test.each(["", "step=3", "role=judge or (failed=true)", 'text~"a) or (b" and task=x', "(a=1) or (b=2)", "reward=1"])(
  "a bar is added to %j, recognized, and removed",
  (rest) => {
    for (const clause of bars) expect(splitFilter(joinFilter(clause, rest))).toEqual({ clause, rest });
    expect(joinFilter("", rest)).toBe(rest);
  },
);

test.each(["reward=1 and (a=1) or (b=2)", "reward=1 and step=3", "reward>0.5", "not reward=1", "reward=1 or step=2"])(
  "%j was not written by a bar",
  (filter) => expect(splitFilter(filter)).toEqual({ clause: "", rest: filter }),
);
