"""ImageNet's archives in their official layout, with generated pictures."""

from collections.abc import Callable
import io
import pathlib
import tarfile
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds


def jpeg(rng: np.random.Generator, height: int, width: int) -> bytes:
  """A smooth random picture, about as many bytes as a photograph."""
  coarse = rng.uniform(0, 255, (1 + height // 4, 1 + width // 4, 3))
  image = tf.image.resize(coarse, (height, width), 'bicubic')
  return tf.io.encode_jpeg(tf.cast(image, tf.uint8)).numpy()


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
  info = tarfile.TarInfo(name)
  info.size = len(data)
  archive.addfile(info, io.BytesIO(data))


def prepare(
  root: pathlib.Path,
  picture: Callable[[], bytes],
  *,
  labels: int,
  each: int,
  validation: int,
  shards: int,
) -> Any:
  """Writes the archives and lets TFDS prepare imagenet2012 from them.

  Args:
    root: TFDS's data directory.
    picture: returns a JPEG.
    labels: number of labels, of the thousand, that have pictures.
    each: number of training pictures per label.
    validation: number of pictures in the validation split.
    shards: number of files per split.

  Returns:
    The TFDS builder.
  """
  manual = root / 'downloads' / 'manual'
  manual.mkdir(parents=True, exist_ok=True)
  names = tfds.core.tfds_path('datasets/imagenet2012/labels.txt')
  with tarfile.open(manual / 'ILSVRC2012_img_train.tar', 'w') as train:
    for name in names.read_text().split()[:labels]:
      inner = io.BytesIO()
      with tarfile.open(fileobj=inner, mode='w') as images:
        for i in range(each):
          _add(images, f'{name}_{i}.JPEG', picture())
      _add(train, f'{name}.tar', inner.getvalue())
  with tarfile.open(manual / 'ILSVRC2012_img_val.tar', 'w') as images:
    for i in range(1, validation + 1):
      _add(images, f'ILSVRC2012_val_{i:08d}.JPEG', picture())
  tfds.disable_progress_bar()
  builder = tfds.builder('imagenet2012', data_dir=root)
  builder.download_and_prepare(
    download_config=tfds.download.DownloadConfig(num_shards=shards)
  )
  return builder
