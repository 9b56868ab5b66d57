/** Finds numbers in free text: signs, thousands commas, decimals. Exact, since digits are compared as text. */

/** A hyphen, or a minus sign of its own, is a sign unless it is a dash between two values, as in "12-31". */
const start = String.raw`(?:(?<![\w.)])[-−]|(?<![\w.]))`;
const plain = new RegExp(String.raw`${start}(?:\d+(?:\.\d+)?|\.\d+)`, "g");
const withThousands = new RegExp(String.raw`${start}(?:(?:\d{1,3}(?:,\d{3}(?!\d))+|\d+)(?:\.\d+)?|\.\d+)`, "g");

/**
 * The numbers of a text in order, in canonical form: `"$1,234.50"` gives `"1234.5"`, `"-0"` gives `"0"`.
 * @param thousands whether "1,234" is one number; false for lists such as "10,200,300"
 */
export function numbersIn(text: string, { thousands }: { thousands: boolean }): string[] {
  return [...text.matchAll(thousands ? withThousands : plain)].map(([written]) => canonical(written));
}

/** @example canonical("-007.50") // "-7.5" */
export function canonical(written: string): string {
  const [whole = "", fraction = ""] = written.replace(/[-−,]/g, "").split(".");
  const digits = whole.replace(/^0+(?=\d)/, "") || "0";
  // The pattern /0+$/ would take quadratic time on zeros before another digit.
  let end = fraction.length;
  while (fraction[end - 1] === "0") end--;
  const decimals = fraction.slice(0, end);
  const magnitude = decimals === "" ? digits : `${digits}.${decimals}`;
  return /^[-−]/.test(written) && magnitude !== "0" ? `-${magnitude}` : magnitude;
}
