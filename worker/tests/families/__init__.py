"""Measures what Hone does with each family of models, on tiny random models of the installed transformers.

`python -m families` (in worker/tests) measures all families and writes record.json, from which `npm run docs` makes
docs/reference/models.md."""
