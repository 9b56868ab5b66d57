import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { numbersIn } from "../base/text.ts";
import { exactMatch, firstInteger, gsm8kAnswer, integersInOrder, matchesFormat } from "./index.ts";

describe("numbersIn", () => {
  test.each<[string, string[], string[]]>([
    ["", [], []],
    ["none", [], []],
    ["12 or 31", ["12", "31"], ["12", "31"]],
    ["12-31", ["12", "31"], ["12", "31"]],
    ["-5, (-6), 7 - -8", ["-5", "-6", "7", "-8"], ["-5", "-6", "7", "-8"]],
    ["(a)-3", ["3"], ["3"]],
    ["−5 − 3, 12−31", ["-5", "3", "12", "31"], ["-5", "3", "12", "31"]],
    ["$1,234.50", ["1234.5"], ["1", "234.5"]],
    ["10,200,300", ["10200300"], ["10", "200", "300"]],
    ["1,2345", ["1", "2345"], ["1", "2345"]],
    ["1, 2", ["1", "2"], ["1", "2"]],
    ["007 -0 0.10 .5", ["7", "0", "0.1", "0.5"], ["7", "0", "0.1", "0.5"]],
    ["1.2.3", ["1.2"], ["1.2"]],
    ["ends with 42.", ["42"], ["42"]],
    ["x12 **13** 14%", ["13", "14"], ["13", "14"]],
  ])("%j", (text, withThousands, plain) => {
    expect(numbersIn(text, { thousands: true })).toEqual(withThousands);
    expect(numbersIn(text, { thousands: false })).toEqual(plain);
  });

  test("reads any integer in any notation", () => {
    fc.assert(
      fc.property(fc.maxSafeInteger(), (value) => {
        const expected = [String(value === 0 ? 0 : value)];
        expect(numbersIn(`is ${value}.`, { thousands: true })).toEqual(expected);
        expect(numbersIn(`is ${value.toLocaleString("en-US")}!`, { thousands: true })).toEqual(expected);
        expect(numbersIn(`is ${value}.00`, { thousands: false })).toEqual(expected);
      }),
    );
  });
});

test.each<[string, number, number, string]>([
  ["31 is larger", 31, 1, "the first number is 31, expected 31"],
  ["The larger is 31, not 12", 31, 1, "the first number is 31, expected 31"],
  ["12 is smaller than 31", 31, 0, "the first number is 12, expected 31"],
  ["31.5", 31, 0, "the first number is 31.5, expected 31"],
  ["1,234", 1234, 1, "the first number is 1234, expected 1234"],
  ["-7", 7, 0, "the first number is -7, expected 7"],
  ["−7", 7, 0, "the first number is -7, expected 7"],
  ["no idea", 7, 0, 'no number in "no idea"'],
])("firstInteger(%j, %d) is %d", (reply, expected, reward, explanation) => {
  expect(firstInteger(reply, expected)).toEqual({ reward, correct: reward === 1, explanation });
});

test.each<[string, number[], number, boolean]>([
  ["12, 31, 40", [12, 31, 40], 1, true],
  ["12,31,40", [12, 31, 40], 1, true],
  ["100,200,300", [100, 200, 300], 1, true],
  ["12, 40, 31", [12, 31, 40], 1 / 3, false],
  ["12, 31", [12, 31, 40], 2 / 3, false],
  ["12, 31, 40. So 40 is last", [12, 31, 40], 1, true],
  ["31, 40", [12, 31, 40], 0, false],
  ["none", [1], 0, false],
])("integersInOrder(%j, %j) is %d", (reply, expected, reward, correct) => {
  expect(integersInOrder(reply, expected)).toMatchObject({ reward, correct });
});

test.each<[string, string, number, string]>([
  ["6 * 7 = 42\n#### 42", "so\n#### 42", 1, "after ####"],
  ["#### $1,234.00", "#### 1234", 1, "after ####"],
  ["#### 42 apples of 50", "42", 1, "after ####"],
  ["#### 41\nwait\n#### 42", "42", 1, "after ####"],
  ["####", "42", 0, "no final number"],
  ["1 and 2 ####", "2", 1, "as the last number"],
  ["so \\boxed{42} of 50", "#### 42", 1, "in \\boxed{}"],
  ["\\boxed{41} no, \\boxed{\\text{all } 1{,}042}", "1042", 1, "in \\boxed{}"],
  ["\\boxed{4", "4", 1, "in \\boxed{}"],
  ["The answer is 42.", "#### 42", 1, "as the last number"],
  ["42.5", "42", 0, "as the last number"],
  ["-42", "#### 42", 0, "as the last number"],
  ["I do not know", "#### 42", 0, "no final number"],
])("gsm8kAnswer(%j, %j) is %d", (reply, reference, reward, where) => {
  const graded = gsm8kAnswer(reply, reference);
  expect(graded).toMatchObject({ reward, correct: reward === 1 });
  expect(graded.explanation).toContain(where);
});

test("an invalid expected answer is an error, not a reward of 0", () => {
  expect(() => gsm8kAnswer("42", "#### none")).toThrow("does not contain a number");
  expect(() => firstInteger("42", Number.NaN)).toThrow("got NaN");
  expect(() => integersInOrder("42", [])).toThrow("list of integers");
  expect(() => integersInOrder("42", [1.5])).toThrow("got [1.5]");
});

test("exactMatch and matchesFormat", async () => {
  expect(exactMatch(" Paris\n", "Paris")).toMatchObject({ reward: 1, correct: true });
  expect(exactMatch("paris", "Paris")).toMatchObject({ reward: 0, explanation: '"paris" is not "Paris"' });
  expect(exactMatch("paris", "Paris", { ignoreCase: true }).reward).toBe(1);
  const pattern = /^<a>\d+<\/a>$/g;
  for (let round = 0; round < 2; round++) expect((await matchesFormat("<a>1</a>", pattern)).reward).toBe(1);
  expect((await matchesFormat("x<a>1</a>", pattern)).reward).toBe(0);
  expect((await matchesFormat("y".repeat(500), pattern)).explanation.length).toBeLessThan(200);
});
