"""One process, 16 virtual devices, shapes checked, every warning an error."""

import os
import tempfile

# jaxlib 0.10 hangs on few cores unless its pool is larger; and where workers
# do wait for each other in vain, a test should fail within seconds.
os.environ['PJRT_NPROC'] = '16'
os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_cpu_collective_call_terminate_timeout_seconds=20'
)
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'
os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'
os.environ['JAX_PLATFORMS'] = 'cpu'

# Programs that many tests run are compiled once, here and in the processes
# that tests start.
_CACHE = tempfile.TemporaryDirectory()
os.environ['JAX_COMPILATION_CACHE_DIR'] = _CACHE.name
os.environ['JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS'] = '0'
os.environ['JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES'] = '-1'

import beartype
import jax
import jaxtyping
import pytest

# The shapes and types in public signatures hold for every call in a test; an
# int may stand for a float, as for any type checker.
typecheck = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
jaxtyping.install_import_hook('selsync_jax', 'conftest.typecheck')

jax.config.update('jax_num_cpu_devices', 16)
jax.config.update('jax_numpy_rank_promotion', 'raise')


@pytest.fixture(params=['pmap', 'vmap'])
def mapper(request):
  """Both ways of running the workers."""
  return request.param


@pytest.fixture(scope='session')
def data_dir(tmp_path_factory):
  """A TFDS data directory of the tests' own."""
  return str(tmp_path_factory.mktemp('tfds'))
