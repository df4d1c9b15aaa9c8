"""Images: digits, clothes, CIFAR-10 and CIFAR-100, and ImageNet.

References:
  Alpaydin and Kaynak, `Optical Recognition of Handwritten Digits`, UCI Machine
    Learning Repository, 1998.
  Xiao, Rasul and Vollgraf, `Fashion-MNIST: a Novel Image Dataset for
    Benchmarking Machine Learning Algorithms`, 2017 (arXiv 1708.07747).
  Krizhevsky, `Learning Multiple Layers of Features from Tiny Images`, 2009.
  Russakovsky et al., `ImageNet Large Scale Visual Recognition Challenge`,
    IJCV 2015.
"""

import gzip
import hashlib
import math
import pathlib
from typing import Annotated, Any
import zlib

from annotated_types import Interval
import numpy as np

from selsync_jax.data import arrays, checks, protocol
from selsync_jax.data.order import Shuffled

Pixels = Annotated[int, Interval(ge=1, le=4096)]
"""Pixels per side of an image."""

DEBIAN = pathlib.Path('/usr/share/datasets/fashion-mnist')
"""The folder of Debian's package dataset-fashion-mnist."""

# Mean and standard deviation of gray, or of red, green and blue, in [0, 1].
_FASHION = 0.2860, 0.3530
_CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_CIFAR100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# TFDS has shuffled the training images, so the last are a random sample.
TENTHS = {'train': 'train[:90%]', 'validation': 'train[90%:]', 'test': 'test'}


def _normalized(mean: Any, deviation: Any) -> protocol.Prepare:
  """Returns a function from bytes to float32 of zero mean, unit deviation."""
  shape = 1, 1, 1, -1
  scale = np.float32(np.reshape(1 / (255 * np.asarray(deviation)), shape))
  shift = np.float32(np.reshape(np.divide(mean, deviation), shape))
  return lambda image: image * scale - shift


def _read(rows: Any) -> protocol.Examples:
  """Returns all images of a split as stored, and their labels."""
  (batch,) = rows.batch(len(rows)).as_numpy_iterator()
  return {'image': batch['image'], 'label': batch['label'].astype(np.int32)}


def fashion_mnist(*, idx_dir: str | None = None) -> arrays.ArrayDataset:
  """Returns 70,000 gray pictures of clothes, 28x28, 10 labels; 54,000 train.

  `idx_dir` is a folder with the four files, as published or unpacked; `None` is
  the folder of Debian's package. The last tenth of the training pictures is for
  validation.
  """
  folder = checks.folder('idx_dir', idx_dir) if idx_dir else DEBIAN
  if not folder.is_dir():
    raise ValueError(
      'no files of fashion_mnist; set config.data.idx_dir to a folder with its '
      'four files (Debian: apt install dataset-fashion-mnist)'
    )
  try:
    splits = _split_fashion(folder)
  except ValueError as error:
    raise ValueError(f'{folder}: {error}') from error
  return arrays.ArrayDataset(
    'fashion_mnist',
    task='classification',
    num_classes=10,
    splits=splits,
    transform=protocol.unchanged,
    prepare=_normalized(*_FASHION),
  )


def _split_fashion(folder: pathlib.Path) -> dict[str, protocol.Examples]:
  """Reads the four files; the last tenth is for validation."""

  def examples(part):
    images = _read_idx(folder, f'{part}-images-idx3-ubyte', 3)
    labels = _read_idx(folder, f'{part}-labels-idx1-ubyte', 1)
    every = {'image': images[..., None], 'label': labels.astype(np.int32)}
    return checks.checked(part, every, 10)

  train, test = examples('train'), examples('t10k')
  first = arrays.count(train) * 9 // 10
  return {
    'train': {name: array[:first] for name, array in train.items()},
    'validation': {name: array[first:] for name, array in train.items()},
    'test': test,
  }


def _read_idx(folder: pathlib.Path, name: str, dimensions: int) -> np.ndarray:
  """Returns the array of an IDX file, which may be compressed.

  Raises:
    ValueError: if the folder has no such file, or it holds no such array.
  """
  path = folder / name
  compressed = folder / f'{name}.gz'
  try:
    if compressed.exists():
      content = gzip.decompress(compressed.read_bytes())
    else:
      content = path.read_bytes()
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f'{name}: {error}') from error
  start, kind = 4 + 4 * dimensions, 0x0800 + dimensions  # An array of bytes.
  head = content[:start].ljust(start, b'\0')
  word, *shape = np.frombuffer(head, '>u4').tolist()
  if word != kind or start + math.prod(shape) != len(content):
    raise ValueError(f'{name}: not an IDX file of a {dimensions}-D byte array')
  return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def _cifar(
  name: str, colors: tuple, image_size: int | None, directory: str | None
) -> arrays.ArrayDataset:
  from selsync_jax.data.tfdata import (
    augment,  # Imports TensorFlow.
    prepared,
  )

  builder = prepared.open_builder(name, TENTHS['train'], directory)

  def finish(image, label):
    image = augment.resize(image, image_size)
    return {'image': augment.to_bytes(image), 'label': label}

  def train(batch, key):
    return finish(augment.pad_crop_flip(batch['image'], key), batch['label'])

  return arrays.ArrayDataset(
    name,
    task='classification',
    num_classes=builder.info.features['label'].num_classes,
    splits={k: _read(prepared.rows(builder, v)) for k, v in TENTHS.items()},
    transform=lambda batch: finish(**batch),
    train=train,
    prepare=_normalized(*colors),
  )


def cifar10(
  directory: str | None = None, *, image_size: Pixels | None = None
) -> arrays.ArrayDataset:
  """Returns 60,000 images of 32x32 pixels, 10 labels; 45,000 train.

  `image_size` is the pixels per side; `None` is 32, the original.
  """
  return _cifar('cifar10', _CIFAR10, image_size, directory)


def cifar100(
  directory: str | None = None, *, image_size: Pixels | None = None
) -> arrays.ArrayDataset:
  """Returns images with 100 labels, otherwise as in `cifar10`."""
  return _cifar('cifar100', _CIFAR100, image_size, directory)


def imagenet2012(
  directory: str | None = None,
  *,
  image_size: Pixels = 224,
  window: Annotated[int, Interval(ge=1, le=10**6)] = 1024,
) -> protocol.Dataset:
  """Returns 1,281,167 photographs, 1,000 labels; 1% are for validation.

  The test images are the 50,000 validation images of the challenge, because the
  labels of its test images were never published. A crop has `image_size` pixels
  per side, and `window` examples are shuffled together.
  """
  import tensorflow as tf

  from selsync_jax.data.tfdata import augment, prepared, streamed

  splits = {
    'train': 'train[:99%]',
    'validation': 'train[99%:]',
    'test': 'validation',
  }
  how = (
    'put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into '
    '{dir}/downloads/manual, then: tfds build imagenet2012 --data_dir={dir}'
  )
  builder = prepared.open_builder(
    'imagenet2012', splits['train'], directory, how
  )

  def finish(image, label):
    return {'image': augment.to_bytes(image), 'label': tf.cast(label, tf.int32)}

  def train(example, key):
    image = augment.inception_crop(example['image'], key, image_size)
    return finish(image, example['label'])

  def transform(example):
    image = augment.center_crop(example['image'], image_size)
    return finish(image, example['label'])

  return streamed.StreamedDataset(
    'imagenet2012',
    task='classification',
    num_classes=builder.info.features['label'].num_classes,
    splits={k: streamed.shards(builder, v) for k, v in splits.items()},
    order=Shuffled(window),
    transform=transform,
    train=train,
    prepare=_normalized(*_IMAGENET),
  )


# Never change these, nor the order of the examples: scores would not be
# comparable.
_SPLIT_SEED = 0
_TEST, _VALIDATION = 360, 180


def _split_digits(labels: np.ndarray) -> dict[str, np.ndarray]:
  """Returns the indices of each split, stratified by class, drawn by MD5."""
  from sklearn import model_selection  # Takes a second to import.

  def stratified(indices, size):
    how = {'stratify': labels[indices], 'random_state': _SPLIT_SEED}
    return model_selection.train_test_split(indices, test_size=size, **how)

  def shuffled(split, indices):
    digests = [hashlib.md5(f'{split}{i}'.encode()).digest() for i in indices]
    return indices[sorted(range(len(indices)), key=digests.__getitem__)]

  train, test = stratified(np.arange(len(labels)), _TEST)
  train, validation = stratified(train, _VALIDATION)
  splits = {'train': train, 'validation': validation, 'test': test}
  return {split: shuffled(split, rows) for split, rows in splits.items()}


def digits(
  backend: str = 'tf', *, image_size: Pixels | None = None
) -> arrays.ArrayDataset:
  """Returns 1,797 gray images in [0, 1].

  `image_size` is the pixels per side; `None` is 8, the original.
  """
  from sklearn import datasets  # Takes a second to import.

  if image_size and backend == 'numpy':
    raise ValueError(
      f"image_size={image_size}: only data.backend='tf' can resize digits"
    )

  images, labels = datasets.load_digits(return_X_y=True)
  every = {  # Images are in 17 gray levels.
    'image': np.asarray(images, np.uint8).reshape(-1, 8, 8, 1),
    'label': np.asarray(labels, np.int32),
  }
  splits = {
    split: {name: array[rows] for name, array in every.items()}
    for split, rows in _split_digits(every['label']).items()
  }

  def transform(examples):
    image = examples['image'] / 16
    if image_size:
      from selsync_jax.data.tfdata import augment  # Imports TensorFlow.

      image = augment.resize(image, image_size)
    return {'image': image, 'label': examples['label']}

  return arrays.ArrayDataset(
    'digits',
    task='classification',
    num_classes=10,
    splits=splits,
    transform=transform,
    dtypes={'image': np.float32},
  )
