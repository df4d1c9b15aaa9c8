"""The frames from `train.py` to the mean over workers, in a traceback."""

import json
import re
import sys

import pytest

from tests.support import live_runs
from tests.support.session import ROOT

# Runs train.py until the mean of a step is traced, and prints the frames.
TRACED = """
import json, os, pathlib, runpy, sys, traceback
from selsync_jax.sync import consensus

root, means = pathlib.Path.cwd(), consensus.means

def show(*args, **kwargs):
  frames = [
    (str(pathlib.Path(frame.filename).relative_to(root)), frame.name)
    for frame in traceback.extract_stack()
    if frame.filename.startswith((f'{root}/train.py', f'{root}/selsync_jax'))
  ]
  if not any(file.endswith('training/step.py') for file, _ in frames):
    return means(*args, **kwargs)  # A part alone, traced for its traffic.
  print(json.dumps(frames), flush=True)
  os._exit(0)

consensus.means = show
runpy.run_path(f'{root}/train.py', run_name='__main__')
"""
STEP = re.compile(r'^\d+\. `(\w+|train\.py)`.*?\]\(\.\./([^)]+)\)', re.M | re.S)


@pytest.mark.slow
def test_the_frames_from_train_to_the_mean_match_the_docs(tmp_path):
  flags = ['--config=configs/digits.py:local_sgd', '--config.steps=2']
  flags += ['--config.data.backend=numpy', f'--workdir={tmp_path / "run"}']
  done = live_runs.run(sys.executable, '-c', TRACED, *flags)
  assert done.returncode == 0, done.stderr
  frames = json.loads(done.stdout.splitlines()[-1])
  (_, section) = (
    (ROOT / 'docs' / 'architecture.md')
    .read_text()
    .split('## From `train.py` to the line that averages\n')
  )
  documented = STEP.findall(section.partition('\n## ')[0])
  named = [('train.py' if n == '<module>' else n, file) for file, n in frames]
  assert named == documented
  assert len(frames) <= 10
  assert len({file for file, _ in frames}) <= 7
