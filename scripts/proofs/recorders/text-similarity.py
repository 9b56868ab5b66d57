"""Similarities of texts by rapidfuzz and rouge-score, for src/integrations/openai-rft/similarity.test.ts.

    pip install rapidfuzz==3.14.6 rouge-score==0.1.2
    python scripts/proofs/recorders/text-similarity.py 2026 40 > src/integrations/openai-rft/similarity.fixture.json

Arguments: seed, number of random pairs of texts.
"""

import json
import random
import sys

from rapidfuzz import fuzz
from rouge_score import rouge_scorer

draw = random.Random(int(sys.argv[1]))
METRICS = ["rouge1", "rouge2", "rouge3", "rouge4", "rouge5", "rougeL"]
WORDS = ["the", "The", "cat", "dog's", "sat", "on", "a", "mat", "42", "3.5", "naïve", "日本", "🙂", "re-run", "end."]
PAIRS = [
    ("", ""), ("", "a"), ("a", ""), ("same", "same"), ("Paris", "paris"), ("hello world", "hello there"),
    ("the cat sat on the mat", "the cat is on the mat"), ("a b c d e f", "f e d c b a"), ("🙂🙂", "🙂"), ("x" * 70, "x" * 65 + "y"),
    ("one two three four five six", "one two three four five six"), ("ab" * 40, "ba" * 40),
]


def text():
    return draw.choice([" ", "  ", ", "]).join(draw.choice(WORDS) for _ in range(draw.randrange(0, 30)))


scorer = rouge_scorer.RougeScorer(METRICS, use_stemmer=False)
cases = []
for said, wanted in PAIRS + [(text(), text()) for _ in range(int(sys.argv[2]))]:
    found = scorer.score(wanted, said)
    rouge = {f"rouge_{name[5:].lower()}": found[name].fmeasure for name in METRICS}
    cases.append({"input": said, "reference": wanted, "fuzzy_match": fuzz.ratio(said, wanted) / 100, **rouge})
print(json.dumps(cases))
