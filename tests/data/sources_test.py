"""Each data set, from its real source or from TFDS's mock."""

import hashlib
import pathlib
import sysconfig
import zipfile

import jax
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from selsync_jax.data.sources import (
  DATASETS,
  digits,
  imagenet2012,
  python_text,
  stdlib_text,
  wikitext103,
)
from selsync_jax.data.sources.images import TENTHS
from selsync_jax.data.sources.text import builder as wikitext
from selsync_jax.data.sources.text import documents, KINDS, split_of
from selsync_jax.data.tfdata.prepared import open_builder
from tests.support import batches

SPLITS = ('train', 'validation', 'test')


def tensors(examples, stop=None):
  return {k: tf.constant(v[:stop]) for k, v in examples.items()}


@pytest.fixture(scope='module')
def splits():
  """The splits of the digits."""
  return digits().splits


def test_the_digits_are_scikit_learns_each_in_one_split(splits):
  from sklearn.datasets import load_digits

  def rows(image, label):
    flat = image.reshape(len(image), -1)
    return sorted(map(tuple, np.column_stack([label, flat]).tolist()))

  stored = {
    field: np.concatenate([split[field] for split in splits.values()])
    for field in ('image', 'label')
  }
  expected = load_digits()
  assert rows(stored['image'], stored['label']) == rows(
    expected.images.astype(int), expected.target
  )
  assert [len(s['label']) for s in splits.values()] == [1257, 180, 360]


def test_every_label_has_its_share_of_every_split(splits):
  for split in splits.values():
    share = np.bincount(split['label'], minlength=10) / len(split['label'])
    np.testing.assert_allclose(share, 0.1, atol=0.012)


def test_the_digits_split_is_the_same_on_every_machine(splits):
  digest = hashlib.sha256()
  for split in splits.values():
    digest.update(split['image'].tobytes())
    digest.update(split['label'].astype(np.uint8).tobytes())
  assert digest.hexdigest()[:16] == '97ff964c8528b93a', (
    'The examples or their order changed: results on digits cannot be '
    'compared with earlier ones.'
  )


def test_digits_can_be_larger(splits):
  dataset = digits(image_size=20)
  stored = {'image': np.float32(splits['test']['image'])}
  stored['label'] = splits['test']['label']
  batch = dataset.transform(tensors(stored, 5))
  image = batch['image'].numpy()
  assert image.shape == (5, 20, 20, 1) and image.dtype == np.float32
  small = splits['test']['image'][:5] / 16
  np.testing.assert_allclose(
    image.mean(axis=(1, 2, 3)), small.mean(axis=(1, 2, 3)), atol=0.02
  )


def test_the_stdlib_text_is_the_librarys_each_file_in_one_split():
  dataset = stdlib_text(bptt=1)
  assert dataset.num_classes == 256
  folder = pathlib.Path(sysconfig.get_path('stdlib'))
  files = sorted(folder.glob('*.py'))
  for split in SPLITS:
    text = b''.join(
      file.read_bytes() for file in files if split_of(file.name) == split
    )
    tokens = dataset.splits[split]['tokens']
    assert tokens[:, 0].tobytes() == text[:-1]  # Inputs.
    assert tokens[:, 1].tobytes() == text[1:]  # Targets.
    share = len(text) / sum(file.stat().st_size for file in files)
    assert share > 0.05


@pytest.mark.slow
def test_each_kind_of_text_has_its_share_of_every_split():
  dataset = python_text(bptt=50)
  assert dataset.num_classes == 256
  kinds = [documents(name) for name in KINDS]
  for split, examples in dataset.splits.items():
    tokens, labels = examples['tokens'], examples['label']
    assert len(set(np.bincount(labels).tolist())) == 1
    for kind, found in enumerate(kinds):
      text = b''.join(found[n] for n in sorted(found) if split_of(n) == split)
      own = tokens[labels == kind][:, :-1].tobytes()
      assert len(own) > 10_000 and text.startswith(own)


def test_by_label_a_worker_reads_one_kind_of_text_in_order():
  text = dict(name='python_text', bptt=50, backend='numpy')
  kinds = dict(partition='by_label', labels_per_worker=1)
  data = batches.opened(4, 2, **text, **kinds)
  first, second = data.batches(range(4), 0, 2)
  stored = data.dataset.splits['train']
  for worker in range(4):
    own = stored['tokens'][stored['label'] == worker]
    np.testing.assert_array_equal(first['inputs'][worker, 0], own[0, :-1])
    np.testing.assert_array_equal(second['inputs'][worker, 0], own[1, :-1])
  assert set(first) == {'inputs', 'targets', 'mask'}


def test_a_files_split_depends_on_its_name_alone():
  assert split_of('argparse.py') == 'train'
  assert split_of('shutil.py') == 'validation'
  assert split_of('operator.py') == 'test'


@pytest.mark.parametrize('backend', ['tf', 'numpy'])
def test_segments_overlap_by_one_token_a_target_and_then_an_input(backend):
  data = batches.opened(1, 9, name='stdlib_text', bptt=50, backend=backend)
  batch = next(data.evaluation('train', 9, [0], 1))
  inputs, targets = batch['inputs'][0], batch['targets'][0]
  assert inputs.shape == targets.shape == (9, 50)
  assert inputs.dtype == targets.dtype == np.int32
  np.testing.assert_array_equal(targets[:, :-1], inputs[:, 1:])
  np.testing.assert_array_equal(targets[:-1, -1], inputs[1:, 0])


def test_wikitext_is_words_of_the_archive_by_the_vocabulary_of_training(
  archives_dir,
):
  dataset = wikitext103(archives_dir, bptt=1)
  words = wikitext()(data_dir=archives_dir).info.metadata['vocabulary']
  assert words == [
    *('<unk>', '<eos>', 'The', 'cat', 'sat', '.', 'dog', ',', 'a', '!')
  ]
  assert dataset.num_classes == 10

  def text(split):
    tokens = dataset.splits[split]['tokens']
    return ' '.join(words[i] for i in [*tokens[:, 0], tokens[-1, 1]])

  line = 'The cat sat . <eos> <eos> The dog <unk> , a cat ! <eos> '
  assert text('train') == (line * 60).strip()
  assert text('validation') == ('The cat <unk> a <unk> . <eos> ' * 40).strip()
  assert text('test') == ('<unk> dog sat ! <eos> ' * 40).strip()


def test_a_long_wikitext_keeps_its_order(tmp_path, archives_dir):
  manual = tmp_path / 'downloads' / 'manual'
  manual.mkdir(parents=True)
  numbers = [str(i) for i in np.random.default_rng(0).integers(0, 99, 150_000)]
  with zipfile.ZipFile(manual / 'wikitext-103-v1.zip', 'w') as archive:
    for split in ('train', 'valid', 'test'):
      text = ' '.join(numbers)
      archive.writestr(f'wikitext-103/wiki.{split}.tokens', text)
  splits = wikitext103(str(tmp_path), bptt=1).splits
  words = wikitext()(data_dir=str(tmp_path)).info.metadata['vocabulary']
  tokens = splits['train']['tokens'][:, 0]
  assert [words[i] for i in tokens] == numbers


COLORS = {  # Mean and deviation of the training images, as published.
  'cifar10': ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
  'cifar100': ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}


@pytest.mark.parametrize('name, labels', [('cifar10', 10), ('cifar100', 100)])
def test_cifar_is_read_as_tfds_has_it_and_normalized(name, labels):
  with tfds.testing.mock_data(num_examples=40):
    dataset = DATASETS[name]()
  splits = dataset.splits
  assert dataset.num_classes == labels
  for split in SPLITS:
    assert splits[split]['image'].shape == (40, 32, 32, 3)
    assert splits[split]['image'].dtype == np.uint8
    assert splits[split]['label'].dtype == np.int32
  batch = dataset.transform(tensors(splits['test']))
  mean, std = COLORS[name]
  stored = batch['image'].numpy()
  np.testing.assert_array_equal(stored, splits['test']['image'])
  read = np.asarray(jax.jit(dataset.prepare)(stored))
  assert read.dtype == np.float32
  np.testing.assert_allclose(read * std + mean, stored / 255, atol=1e-5)
  np.testing.assert_array_equal(batch['label'], splits['test']['label'])


def test_cifars_validation_images_are_not_training_images():
  counts = {'train': tfds.core.SplitInfo('train', [50_000], 0)}
  parts = {
    split: tfds.core.ReadInstruction.from_spec(TENTHS[split]).to_absolute(
      counts
    )[0]
    for split in ('train', 'validation')
  }
  assert (parts['train'].from_, parts['train'].to) == (None, 45_000)
  assert (parts['validation'].from_, parts['validation'].to) == (45_000, None)


def test_imagenets_splits_share_no_photograph_and_its_test_has_labels(
  archives_dir,
):
  splits = imagenet2012(archives_dir).splits
  builder = splits['train'].builder
  assert len(builder.info.splits['train'].shard_lengths) == 5
  names = {
    split: {row['file_name'].numpy() for row in shards.read(0, shards.examples)}
    for split, shards in splits.items()
  }
  assert [len(names[split]) for split in SPLITS] == [202, 2, 12]
  assert not names['train'] & names['validation']
  assert all(b'val' in name for name in names['test'])
  labels = [int(row['label']) for row in splits['test'].read(0, 12)]
  assert min(labels) >= 0 and len(set(labels)) > 1


def test_the_slower_of_two_processes_reads_what_the_faster_prepared(
  tmp_path, archives_dir, monkeypatch
):
  builder = wikitext()
  split_generators = builder._split_generators
  downloads = pathlib.Path(archives_dir) / 'downloads'
  (tmp_path / 'downloads').symlink_to(downloads)

  def overtaken(self, dl_manager):
    monkeypatch.setattr(builder, '_split_generators', split_generators)
    open_builder('wikitext103', 'train', str(tmp_path), make=builder)
    return split_generators(self, dl_manager)

  monkeypatch.setattr(builder, '_split_generators', overtaken)
  splits = wikitext103(str(tmp_path), bptt=9).splits
  assert len(splits['train']['tokens']) == (60 * 14 - 1) // 9
  assert [p.name for p in (tmp_path / 'wikitext103').iterdir()] == ['1.0.0']
