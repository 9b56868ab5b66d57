"""The record of families (families/record.json, from which docs/reference/models.md is made) is what this code does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from families import images
from families.measure import record
from families.record import read
from families.text import TEXT, quiet

CI = ("qwen3_5_text", "nemotron_h", "gpt_oss")
"""Delta rule; Mamba 2 with experts and plain layers; experts with sinks and windows."""
CHOSEN = [family for family in TEXT if os.environ.get("HONE_NIGHTLY") or family.kind in CI]
RECORD = read()
RECORDED = {row["kind"]: row for row in RECORD["text"]}


def test_every_family_is_recorded():
    assert list(RECORDED) == [family.kind for family in TEXT]
    assert sum(row["rows"] in ("packed", "hybrid") for row in RECORDED.values()) >= 60


@pytest.mark.parametrize("family", CHOSEN, ids=lambda family: family.kind)
def test_a_measurement_equals_the_record(family):
    quiet()
    assert record(family) == RECORDED[family.kind]


@pytest.mark.parametrize("column", ["grpo", "fsdp2", "vllm"])
def test_every_family_is_in_the_columns_of_other_programs(column):
    assert sorted(RECORD[column]) == sorted(RECORDED)


def measured_by(module: str, *kinds: str) -> dict:
    """What a program prints, in a process of its own."""
    done = subprocess.run([os.environ.get("HONE_WARM_PYTHON", sys.executable), "-m", module, *kinds], cwd=Path(__file__).parent, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


@pytest.mark.skipif(not os.environ.get("HONE_NIGHTLY"), reason="two processes for each family")
def test_two_ranks_are_what_the_record_says():
    assert measured_by("families.sharded", *RECORDED) == {kind: RECORD["fsdp2"][kind] for kind in RECORDED}


@pytest.mark.skipif(not os.environ.get("HONE_NIGHTLY"), reason="importing vLLM takes half a minute")
def test_adapters_in_vllm_are_what_the_record_says():
    found = measured_by("families.adapters", *RECORDED)
    assert found == {"vllm": RECORD["vllm"], "vllm_version": RECORD["vllm_version"]}


SHOWN = {row["title"]: row for row in RECORD["images"]}


def test_every_family_with_images_is_recorded():
    assert list(SHOWN) == [family.title for family in images.IMAGES]
    assert sum(row["images"] is True for row in SHOWN.values()) >= 14


@pytest.mark.parametrize("family", images.IMAGES, ids=lambda family: family.title)
def test_images_are_what_the_record_says(family):
    if not (os.environ.get("HONE_NIGHTLY") or family.kind in ("qwen3_vl", "gemma3")):
        pytest.skip("nightly")
    quiet()
    assert images.record(family) == SHOWN[family.title]
