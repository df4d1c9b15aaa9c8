"""Workers that find no device are refused before any work."""

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.devices import layout
from selsync_jax.devices import mappers


def test_too_few_accelerators_are_reported_with_a_way_out():
  with pytest.raises(ConfigError, match=r'config.workers=17: .*mapper=auto'):
    layout.check_devices(17, 'pmap')
  layout.check_devices(17, mappers.choose('auto', 17))
