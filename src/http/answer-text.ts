/** Bodies of answers, of which a server may send more than fits into memory. */
import { UserError } from "../errors.ts";

const maxMebibytes = 64;

/**
 * @param body of an answer of fetch or undici
 * @param url whose answer it is
 * @throws UserError if it is larger than 64 MiB; the rest is not received
 */
export async function answerText(body: AsyncIterable<Uint8Array> | null, url: string): Promise<string> {
  const chunks: Uint8Array[] = [];
  let bytes = 0;
  for await (const chunk of body ?? []) {
    bytes += chunk.length;
    if (bytes > maxMebibytes * 2 ** 20) {
      throw new UserError(`${url} answered with more than ${maxMebibytes} MiB`, {
        hint: "Check the address of the server.",
      });
    }
    chunks.push(chunk);
  }
  return new TextDecoder().decode(Buffer.concat(chunks));
}
