"""What a container leaves in the folders of its trial."""

import os
from types import SimpleNamespace

from hone_harbor import logs


def test_what_would_mislead_block_or_fill_a_reader_is_removed(tmp_path):
    for name in ("agent", "verifier"):
        (tmp_path / name).mkdir()
    outside = tmp_path.parent / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    os.mkfifo(tmp_path / "agent" / "trajectory.json")
    os.symlink(outside / "secret", tmp_path / "agent" / "pi.txt")
    os.symlink(outside, tmp_path / "agent" / "sessions")
    with open(tmp_path / "agent" / "long.txt", "wb") as file:
        file.truncate(10 * 2**30)
    (tmp_path / "agent" / "kept.txt").write_text("kept")
    rewards = tmp_path / "verifier" / "reward.json", tmp_path / "verifier" / "reward.txt"
    (rewards[0] / "inside").mkdir(parents=True)
    rewards[1].write_text("1")
    logs.clean(SimpleNamespace(trial_dir=tmp_path, reward_json_path=rewards[0], reward_text_path=rewards[1]))
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["agent", "agent/kept.txt", "verifier"]
    assert (outside / "secret").read_text() == "secret"
