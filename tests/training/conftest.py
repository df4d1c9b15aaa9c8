"""Runs that several tests of training start from."""

import shutil

import pytest

from tests.support.session import make_once
from tests.support.short_runs import run


@pytest.fixture(scope='session')
def finished_once():
  """The folder of a finished run; read only."""
  return make_once('finished', lambda folder: run(folder))


@pytest.fixture
def finished(finished_once, tmp_path):
  """A copy of the finished run, for changes."""
  return shutil.copytree(finished_once, tmp_path / 'run')
