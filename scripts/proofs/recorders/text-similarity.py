"""Similarities of texts by rapidfuzz and rouge-score, for src/integrations/openai-rft/graders.cases.test.ts.

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
    ("Straße", "STRASSE"), ("caf\u00e9", "cafe\u0301"), ("👨\u200d👩\u200d👧", "👨\u200d👩\u200d👦"), ("İstanbul is big", "istanbul is big"),
    ("\u200bthe cat", "the cat"), ("ﬁne print", "fine print"), ("ＡＢＣ 1", "ABC 1"), ("naïve café", "naive cafe"), ("٣ cats", "3 cats"),
    ("ΣΑΣ end", "σας end"), ("\u212a is kelvin", "k is kelvin"), ("\x00a b", "a b"), ("a\r\nb c", "a\nb c"), ("العربية", "العربي"), ("क्षि", "क्ष"),
    ("𝒳 y z", "x y z"), ("a\u00a0b c", "a b c"), ("snake_case word", "snake case word"),
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
