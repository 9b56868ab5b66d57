import { describe, expect, test } from "vitest";
import { FilterError, filterCondition, parseFilter, searchTerms, searchWords } from "./filter.ts";

const problemOf = (text: string) => {
  try {
    filterCondition(text);
  } catch (error) {
    if (error instanceof FilterError) return { message: error.message, at: error.at, length: error.length };
    throw error;
  }
  return undefined;
};

describe("filters", () => {
  test.each([
    ["reward<0.2", "((typeof((reward)) IN ('integer', 'real') AND (reward) < ?) IS TRUE)", [0.2]],
    ["step != 3", "((typeof((step)) IN ('integer', 'real') AND (step) <> ?) IS TRUE)", [3]],
    ["ROLE = judge", "(((role) = ?) IS TRUE)".slice(1, -1), ["judge"]],
    ["correct=true", "((correct) = ?) IS TRUE", [1]],
    ["reward=unknown", "(reward) IS NULL", []],
    ["not correct!=unknown", "NOT (correct) IS NOT NULL", []],
    ['text~"sor\\"ry"', "episode IN (SELECT rowid FROM texts WHERE texts MATCH ?)", ['"sor""ry"*']],
    ['text!~"sorry"', "NOT episode IN (SELECT rowid FROM texts WHERE texts MATCH ?)", ['"sorry"*']],
    ["task~Time", "(instr(lower((task)), lower(?)) > 0 IS TRUE)", ["Time"]],
    ["", "1", []],
  ])("%s", (text, sql, values) => {
    const condition = filterCondition(text);
    expect(condition.sql.replace(/^\((.*)\)$/, "$1")).toBe(sql.replace(/^\((.*)\)$/, "$1"));
    expect(condition.values).toEqual(values);
  });

  test("and binds stronger than or, not strongest; parentheses change that", () => {
    const shape = (text: string) =>
      JSON.stringify(parseFilter(text), (key, value) => (key === "field" || key === "value" ? value.text : value));
    const one = (name: string) => `{"kind":"comparison","field":"${name}","operator":"=","value":"1"}`;
    expect(shape("a=1 or b=1 and not c=1")).toBe(
      `{"kind":"or","parts":[${one("a")},{"kind":"and","parts":[${one("b")},{"kind":"not","part":${one("c")}}]}]}`,
    );
    expect(shape("(a=1 OR b=1) and c=1")).toBe(
      `{"kind":"and","parts":[{"kind":"or","parts":[${one("a")},${one("b")}]},${one("c")}]}`,
    );
  });

  test.each([
    ["rewrd<1", '"rewrd" is not a field (at character 1 of the filter)', 0, 5],
    ["reward<", 'expected a value after "<", but the filter ends (at character 8 of the filter)', 7, 0],
    [
      "reward 1",
      'expected an operator (= != < <= > >= ~ !~) after "reward", but found "1" (at character 8 of the filter)',
      7,
      1,
    ],
    ["reward<low", '"low" is not a number, but reward is (at character 8 of the filter)', 7, 3],
    ["reward=1 step=2", 'expected "and", "or" or the end, but found "step" (at character 10 of the filter)', 9, 4],
    ["(reward=1", 'expected ")" for the "(" at character 1, but the filter ends (at character 10 of the filter)', 9, 0],
    ["reward=1)", 'expected "and", "or" or the end, but found ")" (at character 9 of the filter)', 8, 1],
    ['text~"sorry', "the closing quote is missing (at character 6 of the filter)", 5, 6],
    ["text=sorry", '"text" has no operator = (at character 1 of the filter)', 0, 4],
    ['text~"!"', "expected", 5, 3],
    ["reward~1", "reward is not a text, so it cannot be searched with ~ (at character 8 of the filter)", 7, 1],
    ["correct=maybe", '"maybe" is not true or false (at character 9 of the filter)', 8, 5],
    ["reward<unknown", '"unknown" can only be compared with = and != (at character 8 of the filter)', 7, 7],
    ["! reward=1", '"!" is not an operator (at character 1 of the filter)', 0, 1],
    ["and", "expected an operator", 3, 0],
    [`${"(".repeat(200)}reward=1`, "more than 100 levels of parentheses", 101, 1],
  ])("%s names the mistake and its place", (text, message, at, length) => {
    const problem = problemOf(text);
    expect(problem).toMatchObject({ at, length });
    if (message !== "expected") expect(problem!.message).toContain(message);
  });

  test.each([
    ["sorry", '"sorry"*'],
    ['give up "no answer"', '"give"* AND "up"* AND "no answer"*'],
    ['"open quote', '"open quote"*'],
    ["!!", undefined],
  ])("full text search for %s", (text, terms) => expect(searchTerms(text)).toBe(terms));

  test.each([
    ["sorry", "not_sorry, Sorry", "sorry"],
    ["nowhere 'no-answer", "There is no\nanswer.", "no\nanswer"],
    ["été", "ÉTÉS", "ÉTÉ"],
  ])("the words of %j are found in %j", (words, text, found) => expect(searchWords(words).exec(text)?.[0]).toBe(found));
});
