"""CIFAR-10 and CIFAR-100.

References:
  Krizhevsky, `Learning Multiple Layers of Features from Tiny Images`, 2009.
"""

from selsync_jax.data.order import ShuffledChunk
from selsync_jax.data.sources import source
from selsync_jax.data.sources.source import Source

# Mean and standard deviation of red, green and blue, in [0, 1].
_CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
_CIFAR100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)


def _cifar(name: str, colors: tuple, image_size: int | None) -> Source:
  from selsync_jax.data.tfdata import augment  # Imports TensorFlow.

  def finish(image, label):
    image = augment.normalize(image, *colors)
    return {'image': augment.resize(image, image_size), 'label': label}

  def train(batch, key):
    return finish(augment.pad_crop_flip(batch['image'], key), batch['label'])

  return Source(
    name,
    task='classification',
    num_classes=source.num_labels,
    # TFDS has shuffled the training images, so the last are a random sample.
    splits={
      'train': 'train[:90%]',
      'validation': 'train[90%:]',
      'test': 'test',
    },
    order=ShuffledChunk(),
    transform=lambda batch: finish(**batch),
    train=train,
    read=source.images,
    fetch=f'fetch it with: tfds build {name} --data_dir={{dir}}',
  )


def cifar10(*, image_size: source.Pixels | None = None) -> Source:
  """Returns 60,000 images of 32x32 pixels, 10 labels; 45,000 train.

  Args:
    image_size: the pixels per side, at least 1; `None` is 32, the original.
  """
  return _cifar('cifar10', _CIFAR10, image_size)


def cifar100(*, image_size: source.Pixels | None = None) -> Source:
  """Returns images with 100 labels, otherwise as in `cifar10`."""
  return _cifar('cifar100', _CIFAR100, image_size)
