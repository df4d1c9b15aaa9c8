"""Fashion-MNIST, from files like the published ones."""

import gzip
import struct

import numpy as np
import pytest

from selsync_jax.config import ConfigError
from selsync_jax.data.sources import images
from tests.support import batches
from tests.support.lines import raises

SIZES = {'train': 40, 't10k': 10}


def idx(array):
  """The bytes of an IDX file."""
  head = struct.pack(f'>{1 + array.ndim}I', 0x0800 + array.ndim, *array.shape)
  return head + array.tobytes()


@pytest.fixture
def arrays():
  """Pictures and labels, by the names of the files."""
  rng, made = np.random.default_rng(0), {}
  for part, size in SIZES.items():
    pixels = rng.integers(256, size=(size, 28, 28), dtype=np.uint8)
    made[f'{part}-images-idx3-ubyte'] = pixels
    made[f'{part}-labels-idx1-ubyte'] = np.arange(size, dtype=np.uint8) % 10
  return made


@pytest.fixture(params=['published', 'unpacked'])
def folder(arrays, tmp_path, request):
  for name, array in arrays.items():
    if request.param == 'published':
      (tmp_path / f'{name}.gz').write_bytes(gzip.compress(idx(array)))
    else:
      (tmp_path / name).write_bytes(idx(array))
  return tmp_path


def opened(backend='numpy', **fields):
  return batches.opened(name='fashion_mnist', backend=backend, **fields)


def test_the_last_tenth_of_the_pictures_is_for_validation(folder, arrays):
  data = opened(idx_dir=str(folder))
  assert data.dataset.sizes == {'train': 36, 'validation': 4, 'test': 10}
  for split, part, first in (('validation', 'train', 36), ('test', 't10k', 0)):
    (batch,) = data.evaluation(split, 16, [0], 1)
    labels = arrays[f'{part}-labels-idx1-ubyte'][first:]
    np.testing.assert_array_equal(batch['label'][batch['mask']], labels)
    pixels = arrays[f'{part}-images-idx3-ubyte'][first:, ..., None]
    stored = batch['image'][batch['mask']]
    np.testing.assert_array_equal(stored, pixels)
    np.testing.assert_allclose(
      data.dataset.prepare(stored), (pixels / 255 - 0.286) / 0.353, atol=1e-5
    )


def test_both_backends_make_the_same_bits(folder):
  each = (opened(backend, idx_dir=str(folder)) for backend in ('numpy', 'tf'))
  batches.assert_equal(*(data.batches([0, 1], 7, 12) for data in each))


@pytest.fixture
def without_debian(tmp_path, monkeypatch):
  monkeypatch.setattr(images, 'DEBIAN', tmp_path / 'nothing')


@pytest.mark.usefixtures('without_debian')
@pytest.mark.parametrize('backend', ['numpy', 'tf'])
def test_without_files_one_line_says_how_to_get_them(backend):
  with raises(
    ConfigError,
    'config.data: no files of fashion_mnist; set config.data.idx_dir to a '
    'folder with its four files (Debian: apt install dataset-fashion-mnist)',
  ):
    opened(backend)


IMAGES, LABELS = 'train-images-idx3-ubyte', 'train-labels-idx1-ubyte'
DAMAGES = {
  'lost': (LABELS, None, f'{LABELS}: [Errno 2] No such file or directory: '),
  'cut off': (
    IMAGES,
    slice(-1),
    f'{IMAGES}: not an IDX file of a 3-D byte array',
  ),
  'empty': (IMAGES, slice(0), f'{IMAGES}: not an IDX file of a 3-D byte array'),
}


@pytest.mark.parametrize('damage', DAMAGES)
def test_a_damaged_file_is_named(damage, arrays, tmp_path):
  name, part, line = DAMAGES[damage]
  for each, array in arrays.items():
    if each != name:
      (tmp_path / each).write_bytes(idx(array))
    elif part:
      (tmp_path / each).write_bytes(idx(array)[part])
  with raises(ConfigError, f'config.data: {tmp_path}: {line}...'):
    opened(idx_dir=str(tmp_path))


def test_a_compressed_file_that_is_cut_off_is_named(arrays, tmp_path):
  content = gzip.compress(idx(arrays[IMAGES]))[:-9]
  (tmp_path / f'{IMAGES}.gz').write_bytes(content)
  with pytest.raises(ConfigError, match=f'{IMAGES}: Compressed file ended'):
    opened(idx_dir=str(tmp_path))


def test_other_labels_are_refused(arrays, tmp_path):
  for name, array in (arrays | {LABELS: arrays[LABELS] + 1}).items():
    (tmp_path / name).write_bytes(idx(array))
  with pytest.raises(ConfigError, match='train: label must be whole numbers'):
    opened(idx_dir=str(tmp_path))
