"""ImageNet, streamed from disk.

References:
  Russakovsky et al., `ImageNet Large Scale Visual Recognition Challenge`,
    IJCV 2015.
"""

from typing import Annotated

from annotated_types import Interval

from selsync_jax.data.order import ShuffledBlocks
from selsync_jax.data.sources import source
from selsync_jax.data.sources.source import Source

# Mean and standard deviation of the training images, in [0, 1].
_COLORS = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def imagenet2012(
  *,
  image_size: source.Pixels = 224,
  window: Annotated[int, Interval(ge=1, le=10**6)] = 1024,
) -> Source:
  """Returns 1,281,167 photographs, 1,000 labels; 1% are for validation.

  The test images are the 50,000 validation images of the challenge, because the
  labels of its test images were never published.

  Args:
    image_size: the pixels per side of a crop, at least 1.
    window: the number of examples that are shuffled together, at least 1.
  """
  import tensorflow as tf

  from selsync_jax.data.tfdata import augment

  def finish(image, label):
    image = augment.normalize(image, *_COLORS)
    return {'image': image, 'label': tf.cast(label, tf.int32)}

  def train(example, key):
    image = augment.inception_crop(example['image'], key, image_size)
    return finish(image, example['label'])

  def transform(example):
    image = augment.center_crop(example['image'], image_size)
    return finish(image, example['label'])

  return Source(
    'imagenet2012',
    task='classification',
    num_classes=source.num_labels,
    splits={
      'train': 'train[:99%]',
      'validation': 'train[99%:]',
      'test': 'validation',
    },
    order=ShuffledBlocks(window),
    transform=transform,
    train=train,
    read=None,
    fetch='put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into '
    '{dir}/downloads/manual, then: tfds build imagenet2012 --data_dir={dir}',
  )
