"""Image transforms, whose random choices a resumed run repeats.

Random choices come from `key`, 64 bits for each image and epoch (see draws.py),
so all workers that read an image in an epoch crop it alike.

References:
  Lee et al., `Deeply-Supervised Nets`, AISTATS 2015, and He et al., CVPR 2016:
    pad, crop and flip for CIFAR.
  Szegedy et al., `Going Deeper with Convolutions`, CVPR 2015: the crop of
    Inception for ImageNet.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from selsync_jax.data import draws

Tensor = Any
"""A tensor; type checkers do not know its operators."""


def bits(*words: Any) -> Tensor:
  """Returns `draws.bits` for tensors: uint64, of the words' broadcast shape."""
  tensors = [tf.cast(word, tf.uint64) for word in words]
  return draws.hashed(tensors, tf.constant(0, tf.uint64))


def to_bytes(image: Tensor) -> tf.Tensor:
  """Rounds an image with values in [0, 255] to uint8, to send to the device."""
  if image.dtype == tf.uint8:
    return image
  return tf.saturate_cast(tf.round(image), tf.uint8)


def resize(image: tf.Tensor, size: int | None) -> tf.Tensor:
  """Resizes images [n, height, width, channels] to squares, unless `None`."""
  return image if size is None else tf.image.resize(image, (size, size))


def pad_crop_flip(image: Tensor, key: Tensor, pad: int = 4) -> tf.Tensor:
  """Pads images [n, ...] with black, crops and mirrors by `key`, uint64 [n]."""
  size = image.shape[1:3]
  last = np.float32(size) - 1
  ways = 2 * pad + 1
  flip = (key % 2 == 1)[:, None]
  choice = tf.stack([key // 2 // ways % ways, key // 2 % ways], axis=1)
  first = tf.cast(choice, tf.float32) - pad  # Row and column, in pixels.
  begin, end = first / last, (first + last) / last
  # Move the edge slightly inwards: rounding could move it out of the image.
  begin, end = (0.5 + (side - 0.5) * (1 - 1e-4) for side in (begin, end))
  left, right = begin[:, 1:], end[:, 1:]
  left, right = tf.where(flip, right, left), tf.where(flip, left, right)
  return tf.image.crop_and_resize(  # Pixels outside the image are black.
    image,
    tf.concat([begin[:, :1], left, end[:, :1], right], axis=1),
    tf.range(tf.shape(image)[0]),
    size,
    method='nearest',
  )


def _resized_crop(jpeg, begin, extent, size):
  """Returns the box of a JPEG from `begin`, resized to a square."""
  box = tf.concat([begin, extent], axis=0)
  image = tf.io.decode_and_crop_jpeg(jpeg, box, channels=3)
  return tf.image.resize(image, (size, size), antialias=True)


def inception_crop(jpeg: tf.Tensor, key: Tensor, size: int) -> tf.Tensor:
  """Crops 8 to 100% of the area, resized to a square, mirrored with p = 1/2."""
  begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
    tf.image.extract_jpeg_shape(jpeg),
    bounding_boxes=tf.zeros((0, 0, 4)),
    seed=tf.bitcast(bits(key, tf.range(2)), tf.int64),
    area_range=(0.08, 1.0),
    aspect_ratio_range=(3 / 4, 4 / 3),
    min_object_covered=0.0,
    max_attempts=10,
    use_image_if_no_bounding_boxes=True,
  )
  image = _resized_crop(jpeg, begin[:2], extent[:2], size)
  flip = bits(key, 2) % 2 == 1
  return tf.cond(flip, lambda: tf.reverse(image, [1]), lambda: image)


def center_crop(jpeg: tf.Tensor, size: int) -> tf.Tensor:
  """Crops the square in the middle, with 7/8 of the shorter side."""
  # Like the usual 224 of a shorter side of 256, with one interpolation.
  shape = tf.image.extract_jpeg_shape(jpeg)[:2]
  extent = tf.repeat(tf.maximum(tf.reduce_min(shape) * 7 // 8, 1), 2)
  return _resized_crop(jpeg, (shape - extent) // 2, extent, size)
