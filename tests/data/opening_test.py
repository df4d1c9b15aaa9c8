"""`open_data`: the configs that it refuses, and the line for each."""

import pathlib
import zipfile

import pytest

from selsync_jax.config import ConfigError
from tests.support import batches


def refusal(**data):
  """The message of the error for such data."""
  with pytest.raises(ConfigError) as error:
    batches.opened(**data)
  return str(error.value)


FETCH = {
  'cifar10': 'no cifar10 in {dir}/cifar10/3.0.2; '
  'fetch it with: tfds build cifar10 --data_dir={dir}',
  'cifar100': 'no cifar100 in {dir}/cifar100/3.0.2; '
  'fetch it with: tfds build cifar100 --data_dir={dir}',
  'imagenet2012': 'no imagenet2012 in {dir}/imagenet2012/5.1.0; '
  'put ILSVRC2012_img_train.tar and ILSVRC2012_img_val.tar into '
  '{dir}/downloads/manual, then: tfds build imagenet2012 --data_dir={dir}',
  'wikitext103': 'no wikitext103 in {dir}/wikitext103/1.0.0; '
  'put wikitext-103-v1.zip, the official archive, into {dir}/downloads/manual',
}


@pytest.mark.parametrize('name', FETCH)
def test_missing_data_give_one_line_that_says_how_to_get_them(
  name, tmp_path, capsys
):
  bptt = 35 if name == 'wikitext103' else None
  line = refusal(name=name, dir=str(tmp_path), bptt=bptt)
  assert line == f'config.data.name: {FETCH[name].format(dir=tmp_path)}'
  assert capsys.readouterr() == ('', '')


def test_a_broken_archive_or_one_without_the_file_is_named(tmp_path):
  manual = tmp_path / 'downloads' / 'manual'
  manual.mkdir(parents=True)
  archive = manual / 'wikitext-103-v1.zip'
  archive.write_text('Not Found')
  data = dict(name='wikitext103', dir=str(tmp_path), bptt=35)
  wrong = f'config.data.name: {archive}: '
  assert refusal(**data) == wrong + 'File is not a zip file'
  with zipfile.ZipFile(archive, 'w') as empty:
    empty.writestr('wikitext-2/wiki.train.tokens', 'The')
  assert refusal(**data) == (
    wrong + "There is no item named 'wikitext-103/wiki.train.tokens' in the "
    'archive'
  )
  assert not (tmp_path / 'wikitext103' / '1.0.0').exists()


def test_a_data_directory_that_cannot_exist_is_named(tmp_path):
  (tmp_path / 'file').touch()
  folder = str(tmp_path / 'file' / 'data')
  assert refusal(name='digits', dir=folder) == (
    f'config.data.dir={folder!r}: there is no such folder'
  )
  line = "config.data.dir='~nobody_here/x': Could not determine home"
  assert refusal(name='digits', dir='~nobody_here/x').startswith(line)


def test_another_backend_is_refused():
  line = "config.data.backend: 'torch' is not one of auto, tf, numpy"
  assert refusal(backend='torch') == line


def test_a_text_too_short_for_one_segment_is_refused(archives_dir):
  line = refusal(name='wikitext103', dir=archives_dir, bptt=201)
  assert line == (
    'config.data: bptt=201 asks for more than the 200 tokens of a split'
  )


@pytest.mark.parametrize('name', ['', 'sklearn_digits', 'data/tfds', '.data'])
@pytest.mark.parametrize('backend', ['tf', 'numpy'])
def test_a_data_directory_that_is_empty_or_a_bare_name_is_refused(
  name, backend, tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  assert refusal(dir=name, backend=backend) == (
    f'config.data.dir={name!r}: must be absolute, or begin with ~, ./ or ../'
  )
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('name', ['{tmp}/a', '~/a', './a', '../home/a'])
def test_a_data_directory_may_be_absolute_at_home_or_explicitly_relative(
  name, tmp_path, archives_dir, monkeypatch
):
  home = tmp_path / 'home'
  for folder in (tmp_path, home):  # The folder must exist.
    (folder / 'a').mkdir(parents=True)
    downloads = pathlib.Path(archives_dir) / 'downloads'
    (folder / 'a' / 'downloads').symlink_to(downloads)
  monkeypatch.chdir(home)
  monkeypatch.setenv('HOME', str(home))
  batches.opened(name='wikitext103', bptt=3, dir=name.format(tmp=tmp_path))
  (prepared,) = tmp_path.rglob('a/wikitext103')
  assert prepared.parent in (home / 'a', tmp_path / 'a')
