/** A teacher with another tokenizer: its log-probabilities, moved to the policy's tokens by the bytes that both cover. */

/** A token and where it starts and ends in a passage, in bytes. */
interface Piece {
  token: number;
  start: number;
  end: number;
}

/**
 * Each teacher token's log-probability is divided equally among the policy's tokens that share a byte with it, as in rLLM.
 * Only the bytes of the reasoning and of the content are compared, because the formats around them differ.
 *
 * @param passages the reasoning and the content, in their order in the reply; empty ones are skipped
 * @param student `[T]` the bytes of each token of the policy
 * @param teacher the same of the teacher, for the same reply
 * @param teacherLogprobs `[T of the teacher]`
 * @returns `[T of the policy]`, in nats; NaN: a token of the format, or every token if one of the replies does not contain a
 * passage
 */
export function alignTeacher(
  student: readonly Uint8Array[],
  teacher: readonly Uint8Array[],
  teacherLogprobs: ArrayLike<number>,
  passages: readonly string[],
): Float64Array {
  const aligned = new Float64Array(student.length).fill(Number.NaN);
  const [own, theirs] = [piecesOf(student, passages), piecesOf(teacher, passages)];
  if (!own || !theirs) return aligned;
  const teachersOf = student.map(() => new Set<number>());
  for (const [passage, pieces] of own.entries()) {
    let first = 0;
    for (const { token, start, end } of pieces) {
      while (first < theirs[passage]!.length && theirs[passage]![first]!.end <= start) first++;
      for (let at = first; at < theirs[passage]!.length && theirs[passage]![at]!.start < end; at++) {
        teachersOf[token]!.add(theirs[passage]![at]!.token);
      }
    }
  }
  const uses = new Map<number, number>();
  for (const shared of teachersOf) for (const token of shared) uses.set(token, (uses.get(token) ?? 0) + 1);
  for (const [token, shared] of teachersOf.entries()) {
    if (shared.size === 0) continue;
    aligned[token] = [...shared].reduce((sum, one) => sum + teacherLogprobs[one]! / uses.get(one)!, 0);
  }
  return aligned;
}

/** The parts of tokens within each passage; undefined if a passage is not in the text. */
function piecesOf(bytes: readonly Uint8Array[], passages: readonly string[]): Piece[][] | undefined {
  const whole = Buffer.concat(bytes);
  const found: Piece[][] = [];
  let after = 0;
  for (const passage of passages) {
    if (passage === "") continue;
    const length = Buffer.byteLength(passage);
    const from = whole.indexOf(passage, after);
    if (from === -1) return undefined;
    after = from + length;
    let at = -from;
    const pieces = bytes.map((own, token): Piece => {
      const start = at;
      at += own.length;
      return { token, start: Math.max(0, start), end: Math.min(length, at) };
    });
    found.push(pieces.filter(({ start, end }) => start < end));
  }
  return found;
}
