/** The anchor of a heading on GitHub. The site uses the same, so that a link works in both places. */

/** @param heading as Markdown or plain text; its marks do not count */
export function githubSlug(heading: string): string {
  return heading
    .replace(/!?\[([^\]]*)\]\([^)]*\)/g, "$1")
    .toLowerCase()
    .replace(/[^\p{L}\p{N}\p{M}_\- ]/gu, "")
    .replaceAll(" ", "-");
}
