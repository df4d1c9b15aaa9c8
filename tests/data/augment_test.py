"""Image transforms against NumPy, and the distribution of their choices."""

import numpy as np
import pytest
import tensorflow as tf

from selsync_jax.data.tfdata import augment


def keys(count, seed=0):
  return augment.bits(seed, tf.range(count))


@pytest.mark.parametrize('height, width', [(12, 10), (32, 32), (5, 96)])
def test_a_crop_is_one_of_81_of_the_padded_image_or_mirrored(height, width):
  rng = np.random.default_rng(0)
  images = rng.integers(1, 256, (300, height, width, 3)).astype(np.uint8)
  crops = augment.pad_crop_flip(tf.constant(images), keys(300)).numpy()
  seen = set()
  for image, crop in zip(images, crops, strict=True):
    padded = np.pad(image, [(4, 4), (4, 4), (0, 0)])
    (found,) = [
      (top, left, flip)
      for top in range(9)
      for left in range(9)
      for flip in (1, -1)
      if (
        padded[top : top + height, left : left + width][:, ::flip] == crop
      ).all()
    ]
    seen.add(found)
  assert len(seen) > 120  # Of 162; 300 draws have 137.


def test_all_crops_are_equally_likely():
  image = np.arange(1, 13 * 13 + 1, dtype=np.uint8).reshape(1, 13, 13, 1)
  images = tf.tile(tf.constant(image), (16200, 1, 1, 1))
  crops = augment.pad_crop_flip(images, keys(16200)).numpy()
  kinds, counts = np.unique(crops, axis=0, return_counts=True)
  assert len(kinds) == 162
  # Chi-squared with 161 degrees of freedom: mean 161, deviation 18.
  assert ((counts - 100) ** 2 / 100).sum() < 161 + 4 * 18


def test_an_image_travels_as_the_nearest_bytes():
  image = tf.constant([[-0.4, 0.6, 254.4, 255.7]])
  assert augment.to_bytes(image).numpy().tolist() == [[0, 1, 254, 255]]


HEIGHT, WIDTH = 240, 200


@pytest.fixture(scope='module')
def ramp():
  """A JPEG whose red is the row and whose green is the column."""
  row, column = np.mgrid[:HEIGHT, :WIDTH]
  image = np.stack([row, column, 0 * row], axis=-1).astype(np.uint8)
  return tf.io.encode_jpeg(image, quality=100, chroma_downsampling=False)


def box(crop):
  """First row, rows, first column, columns (< 0: mirrored) of a crop."""
  crop = crop.numpy()
  size = len(crop)
  row = np.polyfit(np.arange(size), crop[..., 0].mean(axis=1), 1)
  column = np.polyfit(np.arange(size), crop[..., 1].mean(axis=0), 1)
  rows, columns = row[0] * size, column[0] * size
  return row[1] - row[0] / 2, rows, column[1], columns


def test_inception_crops_have_the_papers_areas_and_shapes(ramp):
  boxes = np.array(
    [box(augment.inception_crop(ramp, key, 32)) for key in keys(150)]
  )
  rows, columns = boxes[:, 1], abs(boxes[:, 3])
  area = rows * columns / (HEIGHT * WIDTH)
  assert 0.07 < area.min() < 0.2 and 0.8 < area.max() < 1.03
  ratio = columns / rows
  assert 0.7 < ratio.min() < 0.85 and 1.2 < ratio.max() < 1.4
  mirrored = (boxes[:, 3] < 0).mean()
  assert mirrored == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(150))
  assert len(np.unique(boxes.round(), axis=0)) > 140


def test_the_same_key_gives_the_same_crop_and_another_key_another(ramp):
  one, same, other = (
    augment.inception_crop(ramp, key, 16).numpy()
    for key in (*keys(1), *keys(1), *keys(1, seed=1))
  )
  np.testing.assert_array_equal(one, same)
  assert (one != other).any()


def test_a_center_crop_is_the_middle_seven_eighths_of_the_shorter_side(ramp):
  top, rows, left, columns = box(augment.center_crop(ramp, 35))
  assert (rows, columns) == (pytest.approx(175, abs=2),) * 2
  assert top == pytest.approx((HEIGHT - 175) / 2, abs=4)
  assert left == pytest.approx((WIDTH - 175) / 2, abs=4)


def test_the_smallest_photograph_can_be_cropped():
  dot = tf.io.encode_jpeg(np.zeros((1, 1, 3), np.uint8))
  for key in keys(5):
    assert augment.inception_crop(dot, key, 8).shape == (8, 8, 3)
  assert augment.center_crop(dot, 8).shape == (8, 8, 3)
