import { type Grade, grade, quote } from "./grade.ts";

/** Lower case, without punctuation and English articles, as question answering compares answers (SQuAD). */
function wordsOf(text: string): string[] {
  const plain = text.toLowerCase().replace(/[^\p{L}\p{N}\s]/gu, " ");
  return plain.split(/\s+/).filter((word) => word !== "" && !["a", "an", "the"].includes(word));
}

/**
 * The F1 of a reply's words against the nearest of the expected answers, in [0, 1]; `correct` when all words agree.
 *
 * @throws Error when an expected answer has no words
 * @example tokenF1("the city of Paris", "Paris").reward // 0.5
 */
export function tokenF1(reply: string, expected: string | readonly string[]): Grade {
  const scores = [expected].flat().map((answer) => ({ answer, score: f1(wordsOf(reply), wordsOf(answer), answer) }));
  if (scores.length === 0) throw new Error("tokenF1 expects an answer to compare with, got none");
  const best = scores.reduce((left, right) => (right.score > left.score ? right : left));
  return grade(best.score === 1, `F1 ${best.score.toFixed(2)} of ${quote(reply)} to ${quote(best.answer)}`, best.score);
}

function f1(said: readonly string[], wanted: readonly string[], answer: string): number {
  if (wanted.length === 0) throw new Error(`tokenF1 expects an answer with words, got ${quote(answer)}`);
  const left = [...wanted];
  const shared = said.filter((word) => {
    const at = left.indexOf(word);
    if (at >= 0) left.splice(at, 1);
    return at >= 0;
  }).length;
  return shared === 0 ? 0 : (2 * shared) / (said.length + wanted.length);
}
