"""The record of families (families/record.json, from which docs/reference/models.md is made) is what this code does."""

import os

import pytest
from families import images
from families.measure import quiet, record
from families.record import read
from families.text import TEXT

CI = ("qwen3_5_text", "nemotron_h", "gpt_oss")
"""Delta rule; Mamba 2 with experts and plain layers; experts with sinks and windows."""
CHOSEN = [family for family in TEXT if os.environ.get("HONE_NIGHTLY") or family.kind in CI]
RECORDED = {row["kind"]: row for row in read()["text"]}


def test_every_family_is_recorded():
    assert list(RECORDED) == [family.kind for family in TEXT]
    assert sum(row["rows"] in ("packed", "hybrid") for row in RECORDED.values()) >= 60


@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.kind)
def test_a_measurement_equals_the_record(family):
    quiet()
    assert record(family) == RECORDED[family.kind]


SHOWN = {row["title"]: row for row in read()["images"]}


def test_every_family_with_images_is_recorded():
    assert list(SHOWN) == [family.title for family in images.IMAGES]
    assert sum(row["images"] is True for row in SHOWN.values()) >= 14


@pytest.mark.parametrize("family", images.IMAGES, ids=lambda family: family.title)
def test_images_are_what_the_record_says(family):
    if not (os.environ.get("HONE_NIGHTLY") or family.kind in ("qwen3_vl", "mistral3", "gemma3")):
        pytest.skip("nightly")
    quiet()
    assert images.record(family) == SHOWN[family.title]
