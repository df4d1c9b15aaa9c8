"""Workers that find no device are refused before any work."""

import pytest

from selsync_jax.config import ConfigError
from selsync_jax.devices import layout
from selsync_jax.devices import mappers


def test_too_few_accelerators_are_reported_with_a_way_out():
  with pytest.raises(ConfigError, match=r'config.workers=17: .*mapper=auto'):
    mappers.Pmap(17).check()
  mappers.choose('auto', 17).check()


def test_a_worker_of_several_devices_finds_them_all_or_is_refused():
  with pytest.raises(ConfigError, match=r'needs 8 devices .*fsdp$'):
    layout.Layout(3, data=2, fsdp=4).check()
  layout.Layout(2, data=2, fsdp=4).check()


@pytest.mark.parametrize(
  'sizes, rule',
  [
    ((2, 0, 1), 'data must be at least 1, got 0'),
    ((1, 2, 2), 'workers must be at least 2 with 4 devices each, got 1; '),
  ],
)
def test_a_layout_that_no_mesh_can_have_is_refused(sizes, rule):
  with pytest.raises(ValueError, match=rule):
    layout.Layout(*sizes)


def test_a_layout_in_a_loop_of_ones_own_says_what_is_missing():
  with pytest.raises(ConfigError, match='needs 64 devices in each '):
    _ = layout.Layout(8, fsdp=8).mesh


@pytest.mark.parametrize(
  'workers, processes, inside', [(4, 3, 1), (2, 8, 2), (3, 2, 2), (2, 3, 3)]
)
def test_processes_that_cannot_share_the_workers_are_refused(
  workers, processes, inside
):
  with pytest.raises(ConfigError, match=f'config.workers={workers}: '):
    layout.make_devices(workers, processes, data=1, fsdp=inside)
