"""One process, 16 virtual devices, shapes checked, every warning an error."""

import io
import os
import tarfile
import tempfile
import zipfile

# jaxlib 0.10 hangs on few cores unless its pool is larger; and where workers
# do wait for each other in vain, a test should fail within seconds.
os.environ['PJRT_NPROC'] = '16'
os.environ['XLA_FLAGS'] = (
  os.environ.get('XLA_FLAGS', '')
  + ' --xla_cpu_collective_call_terminate_timeout_seconds=20'
)
os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'
os.environ['TF_ENABLE_ONEDNN_OPTS'] = '0'
os.environ['TF_USE_LEGACY_KERAS'] = '1'
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
import numpy as np
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


def _add(archive, name, data):
  info = tarfile.TarInfo(name)
  info.size = len(data)
  archive.addfile(info, io.BytesIO(data))


def _write_imagenet(folder):
  """ILSVRC2012's archives with 204 and 12 random photographs."""
  import tensorflow as tf
  import tensorflow_datasets as tfds

  rng = np.random.default_rng(0)

  def photograph():
    size = (*rng.integers(20, 60, 2), 3)
    image = rng.integers(0, 256, size).astype(np.uint8)
    return tf.io.encode_jpeg(image).numpy()

  labels = tfds.core.tfds_path('datasets/imagenet2012/labels.txt')
  with tarfile.open(folder / 'ILSVRC2012_img_train.tar', 'w') as train:
    for label in labels.read_text().split()[:6]:
      inner = io.BytesIO()
      with tarfile.open(fileobj=inner, mode='w') as images:
        for i in range(34):
          _add(images, f'{label}_{i}.JPEG', photograph())
      _add(train, f'{label}.tar', inner.getvalue())
  with tarfile.open(folder / 'ILSVRC2012_img_val.tar', 'w') as validation:
    for i in range(1, 13):
      _add(validation, f'ILSVRC2012_val_{i:08d}.JPEG', photograph())


WIKITEXT = {
  'train': 'The cat sat .\n\nThe dog <unk> , a cat !\n' * 60,
  'valid': 'The cat saw a bird .\n' * 40,
  'test': 'A dog sat !\n' * 40,
}


@pytest.fixture(scope='session')
def archives_dir(tmp_path_factory):
  """A TFDS data directory with small archives in their official layout.

  ImageNet is prepared from its own, in five shards.
  """
  import tensorflow_datasets as tfds

  root = tmp_path_factory.mktemp('archives')
  manual = root / 'downloads' / 'manual'
  manual.mkdir(parents=True)
  with zipfile.ZipFile(manual / 'wikitext-103-v1.zip', 'w') as archive:
    for split, text in WIKITEXT.items():
      archive.writestr(f'wikitext-103/wiki.{split}.tokens', text)
  _write_imagenet(manual)
  tfds.disable_progress_bar()
  tfds.builder('imagenet2012', data_dir=root).download_and_prepare(
    download_config=tfds.download.DownloadConfig(num_shards=5)
  )
  return str(root)
