"""WikiText-103 as words, from its official archive.

References:
  Merity et al., `Pointer Sentinel Mixture Models`, ICLR 2017.
"""

from collections.abc import Callable, Iterator
import functools
import itertools
import pathlib
from typing import Any
import zipfile

import numpy as np

from selsync_jax.data.arrays import Examples
from selsync_jax.data.arrays import SPLITS
from selsync_jax.data.order import TextStreams
from selsync_jax.data.sources.source import Source
from selsync_jax.data.sources.source import Tokens
from selsync_jax.data.sources.text import next_token
from selsync_jax.data.sources.text import segments

ARCHIVE = 'wikitext-103-v1.zip'
_FILES = {
  'train': 'wikitext-103/wiki.train.tokens',
  'validation': 'wikitext-103/wiki.valid.tokens',
  'test': 'wikitext-103/wiki.test.tokens',
}
_UNKNOWN, _END = '<unk>', '<eos>'
_BLOCK = 2**16  # Tokens of one record.


def _words(archive: pathlib.Path, file: str) -> Iterator[str]:
  """Yields the words of a file, and `<eos>` after every line."""
  try:
    with zipfile.ZipFile(archive) as members, members.open(file) as lines:
      for line in lines:
        yield from line.decode().split()
        yield _END
  except (zipfile.BadZipFile, KeyError) as error:
    raise ValueError(f'{archive}: {error.args[0]}') from error


@functools.cache  # TFDS wants each builder defined once.
def builder() -> Callable[..., Any]:
  """Returns the TFDS builder; imports TFDS."""
  import tensorflow_datasets as tfds

  class Wikitext103(tfds.core.GeneratorBasedBuilder):
    """Verified good and featured articles of Wikipedia, over 100 million words.

    The metadata hold the vocabulary: the words of the training split in order
    of first appearance. All other words are <unk>.
    """

    VERSION = tfds.core.Version('1.0.0')
    MANUAL_DOWNLOAD_INSTRUCTIONS = f'The official archive, {ARCHIVE}.'

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        description=self.__doc__,
        features=tfds.features.FeaturesDict(
          {'tokens': tfds.features.Tensor(shape=(None,), dtype=np.int32)}
        ),
        metadata=tfds.core.MetadataDict(),
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      archive = pathlib.Path(dl_manager.manual_dir) / ARCHIVE
      vocabulary = dict.fromkeys((_UNKNOWN, _END))
      vocabulary.update(dict.fromkeys(_words(archive, _FILES['train'])))
      self.info.metadata['vocabulary'] = list(vocabulary)
      indices = {word: i for i, word in enumerate(vocabulary)}
      return {
        split: self._generate_examples(_words(archive, file), indices)
        for split, file in _FILES.items()
      }

    def _generate_examples(self, words, indices):
      tokens = (indices.get(word, indices[_UNKNOWN]) for word in words)
      for i in itertools.count():
        block = np.fromiter(itertools.islice(tokens, _BLOCK), np.int32)
        if not block.size:
          break
        yield i, {'tokens': block}

  return Wikitext103


def wikitext103(*, bptt: Tokens) -> Source:
  """Returns the words of WikiText-103, for language modeling.

  Args:
    bptt: the number of tokens in an example, at least 1.
  """

  def read(rows: Any) -> Examples:
    blocks = [row['tokens'] for row in rows.as_numpy_iterator()]
    return {'tokens': segments(np.concatenate(blocks), bptt)}

  return Source(
    'wikitext103',
    task='language_modeling',
    num_classes=lambda info: len(info.metadata['vocabulary']),
    splits={split: split for split in SPLITS},
    order=TextStreams(),
    transform=next_token,
    train=None,
    read=read,
    fetch=f'put {ARCHIVE}, the official archive, into {{dir}}/downloads/manual',
    builder=builder(),
  )
