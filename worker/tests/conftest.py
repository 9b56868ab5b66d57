"""The tests in sdk/ need Tinker's SDK and a server (src/server/sdk.e2e.ts runs them), those in verl/ an environment with verl
(src/python/verl-driver.e2e.ts)."""

collect_ignore = ["sdk", "verl"]
