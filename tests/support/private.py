"""Commands with mounts and a host name of their own."""

import pytest

from tests.support import live_runs


def after(setup: str) -> list[str]:
  """Returns a prefix that runs a command after the given shell command.

  Skips the test if the machine does not allow that.
  """
  prefix = ['unshare', '-rmu', 'sh', '-c', f'{setup} && exec "$@"', 'sh']
  tried = live_runs.run('sh', '-c', '"$@"', 'sh', *prefix, 'true')
  if tried.returncode:  # Also 127: there is no `unshare`.
    pytest.skip(f'needs `unshare -rmu` and `{setup}`: {tried.stderr.strip()}')
  return prefix
