import { type Grade, grade, overlong, quote } from "../grade.ts";

/** The words in lower case without punctuation and English articles, as in SQuAD. */
function wordsOf(text: string): string[] {
  const plain = text.toLowerCase().replace(/[^\p{L}\p{N}\s]/gu, " ");
  return plain.split(/\s+/).filter((word) => word !== "" && !["a", "an", "the"].includes(word));
}

/**
 * The highest F1 of a reply's words with an expected answer's, in [0, 1]; `correct` if all words agree.
 *
 * @throws Error if an expected answer has no words
 * @example tokenF1("the city of Paris", "Paris").reward // 0.5
 */
export function tokenF1(reply: string, expected: string | readonly string[]): Grade {
  const answers = [expected].flat().map((answer) => ({ answer, words: wordsOf(answer) }));
  if (answers.length === 0) throw new Error("tokenF1 expects an answer to compare with, got none");
  const empty = answers.find(({ words }) => words.length === 0);
  if (empty) throw new Error(`tokenF1 expects an answer with words, got ${quote(empty.answer)}`);
  const refused = overlong(reply);
  if (refused) return refused;
  const said = wordsOf(reply);
  const scores = answers.map(({ answer, words }) => ({ answer, score: f1(said, words) }));
  const best = scores.reduce((left, right) => (right.score > left.score ? right : left));
  return grade(best.score === 1, `F1 ${best.score.toFixed(2)} of ${quote(reply)} to ${quote(best.answer)}`, best.score);
}

function f1(said: readonly string[], wanted: readonly string[]): number {
  const left = new Map<string, number>();
  for (const word of wanted) left.set(word, (left.get(word) ?? 0) + 1);
  let shared = 0;
  for (const word of said) {
    const count = left.get(word) ?? 0;
    if (count === 0) continue;
    left.set(word, count - 1);
    shared++;
  }
  return (2 * shared) / (said.length + wanted.length);
}
