/** Names and notes that clients give. They are kept in records and logged, so their length is limited. */
import { z } from "zod";

export const clientName = z.string().max(512);
/** The reason that a client gives for its end, which may be an error of its own. */
export const clientNote = z.string().max(65_536);

const mostMetadata = 65_536;

export const clientMetadata = z
  .record(clientName, z.unknown())
  .refine((value) => JSON.stringify(value).length <= mostMetadata, `is longer than ${mostMetadata} characters as JSON`);

export const clientTags = z.array(clientName).max(64);

/** A time in the format of the server's records; clients may send other formats. */
export const clientTime = z.string().transform((text, context) => {
  const time = new Date(text);
  if (!Number.isNaN(time.getTime())) return time.toISOString();
  context.addIssue({ code: "custom", message: "is not a time; give the cursor as the last page gave it" });
  return z.NEVER;
});
