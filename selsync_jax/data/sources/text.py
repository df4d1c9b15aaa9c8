"""Text: files that come with Python, as bytes, and WikiText-103, as words.

References:
  Merity et al., `Pointer Sentinel Mixture Models`, ICLR 2017.
"""

from collections.abc import Callable, Iterator
import functools
import hashlib
import itertools
import pathlib
import sysconfig
from typing import Annotated, Any
import zipfile

from annotated_types import Interval
import numpy as np

from selsync_jax.data import arrays, protocol
from selsync_jax.data.order import TextStreams

Tokens = Annotated[int, Interval(ge=1, le=2**16)]
"""Tokens in an example of text."""


def _segments(tokens: np.ndarray, bptt: int) -> protocol.Examples:
  """Divides tokens [n] into segments [examples, bptt + 1] that overlap."""
  if len(tokens) <= bptt:
    raise ValueError(
      f'bptt={bptt} asks for more than the {len(tokens)} tokens of a split'
    )
  # Fewer than bptt tokens at the end are dropped.
  windows = np.lib.stride_tricks.sliding_window_view(tokens, bptt + 1)
  return {'tokens': np.ascontiguousarray(windows[::bptt])}


def _next_token(examples: Any) -> Any:
  """Returns inputs, and the token after each input as its target."""
  tokens = examples['tokens']
  return {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:]}


def split_of(name: str) -> str:
  """Returns the split of a file by its name; the splits are 8 : 1 : 1."""
  tenth = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % 10
  return {0: 'test', 1: 'validation'}.get(tenth, 'train')


def files_of(split: str) -> list[pathlib.Path]:
  """Returns a split's .py files at the library's top level, sorted by name."""
  folder = pathlib.Path(sysconfig.get_path('stdlib'))
  return sorted(p for p in folder.glob('*.py') if split_of(p.name) == split)


def _of_bytes(
  name: str, examples: Callable[[str], protocol.Examples]
) -> arrays.ArrayDataset:
  """Returns a data set whose tokens are bytes; `examples` takes a split."""
  return arrays.ArrayDataset(
    name,
    task='language_modeling',
    num_classes=256,  # Bytes.
    order=TextStreams(),
    splits={split: examples(split) for split in protocol.SPLITS},
    transform=_next_token,
    dtypes={'tokens': np.int32},
  )


def stdlib_text(*, bptt: Tokens) -> arrays.ArrayDataset:
  """Returns the bytes of the standard library, which every machine has.

  An example has `bptt` tokens.
  """

  def examples(split):
    text = b''.join(path.read_bytes() for path in files_of(split))
    return _segments(np.frombuffer(text, np.uint8), bptt)

  return _of_bytes('stdlib_text', examples)


KINDS = 'packages', 'tests', 'headers', 'documentation'
"""The kinds of text in `python_text`, in the order of their labels."""

_NO_PACKAGES = {'site-packages', 'dist-packages', 'test', 'tests', 'pydoc_data'}


def documents(kind: str) -> dict[str, bytes]:
  """Returns all texts of a kind in `KINDS`, by name."""
  if kind == 'documentation':
    from pydoc_data import topics

    return {name: text.encode() for name, text in topics.topics.items()}
  folder = pathlib.Path(sysconfig.get_path('stdlib'))
  if kind == 'headers':
    folder = pathlib.Path(sysconfig.get_path('include'))
    found = folder.rglob('*.h')
  elif kind == 'tests':
    # Without the suite, Debian has other files there.
    found = folder.glob('test/**/test_*.py')
  else:
    found = (
      path
      for path in folder.glob('*/**/*.py')
      if _NO_PACKAGES.isdisjoint(path.relative_to(folder).parts)
    )
  texts = {str(path.relative_to(folder)): path.read_bytes() for path in found}
  if not texts:
    raise ValueError(
      f'{folder} has no {kind} of Python; install them (Debian: python3-dev '
      'and libpython3-testsuite)'
    )
  return texts


def python_text(*, bptt: Tokens) -> arrays.ArrayDataset:
  """Returns the bytes of four kinds of text that come with Python.

  The kinds are packages of its library, tests, C headers, and the documentation
  of the language, with equally many bytes. The label of an example is its kind:
  with a partition by label, workers read different kinds. An example has `bptt`
  tokens.
  """
  every = [documents(kind) for kind in KINDS]

  def examples(split):
    texts = [
      b''.join(kind[name] for name in sorted(kind) if split_of(name) == split)
      for kind in every
    ]
    least = min(map(len, texts))
    each = [np.frombuffer(text[:least], np.uint8) for text in texts]
    tokens = np.stack([_segments(text, bptt)['tokens'] for text in each])
    labels = np.arange(len(KINDS), dtype=np.int32).repeat(tokens.shape[1])
    return {'tokens': np.concatenate(tokens), 'label': labels}

  return _of_bytes('python_text', examples)


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


def wikitext103(
  directory: str | None = None, *, bptt: Tokens
) -> arrays.ArrayDataset:
  """Returns the words of WikiText-103; an example has `bptt` of them."""
  from selsync_jax.data.tfdata import prepared  # Imports TensorFlow.

  how = f'put {ARCHIVE}, the official archive, into {{dir}}/downloads/manual'
  opened = prepared.open_builder(
    'wikitext103', 'train', directory, how, builder()
  )

  def read(split: str) -> protocol.Examples:
    rows = prepared.rows(opened, split).as_numpy_iterator()
    return _segments(np.concatenate([row['tokens'] for row in rows]), bptt)

  return arrays.ArrayDataset(
    'wikitext103',
    task='language_modeling',
    num_classes=len(opened.info.metadata['vocabulary']),
    order=TextStreams(),
    splits={split: read(split) for split in protocol.SPLITS},
    transform=_next_token,
  )
