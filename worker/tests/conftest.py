"""The tests in sdk/ need Tinker's SDK and a server; src/server/sdk.e2e.ts runs them."""

collect_ignore = ["sdk"]
