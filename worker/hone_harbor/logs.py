"""The folders of a trial that its container writes to, and that Harbor then reads in the process of all trials."""

import os
import shutil
import stat

LONGEST = 64 * 1024 * 1024


def clean(paths):
    """Removes rewards, and what would lead a reader to other files of this machine, let it wait, or fill its memory."""
    for reward in (paths.reward_json_path, paths.reward_text_path):
        if reward.is_dir() and not reward.is_symlink():
            shutil.rmtree(reward)
        else:
            reward.unlink(missing_ok=True)
    for here, folders, files in os.walk(paths.trial_dir):
        for name in [*folders, *files]:
            path = os.path.join(here, name)
            info = os.lstat(path)
            if not stat.S_ISDIR(info.st_mode) and (not stat.S_ISREG(info.st_mode) or info.st_size > LONGEST):
                os.unlink(path)
