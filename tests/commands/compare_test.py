"""`selsync compare`: its runs, its choices, and its output."""

import contextlib
import io
import json
import os
import pathlib
import re
import shutil
import socket
import sys

import pytest

import selsync_jax as ss
from selsync_jax.commands import compare as command
from selsync_jax.commands import config_file, pool
from selsync_jax.config import ConfigError, RunError
from selsync_jax.methods import METHODS
from selsync_jax.runs import files, fingerprint, records, workdir
from selsync_jax.simulate.asynchronous import ASYNCHRONOUS
from selsync_jax.simulate.run import simulate
from selsync_jax.training.train import train_and_evaluate
from tests.support import live_runs, own_code
from tests.support.lines import raises

ROOT = pathlib.Path(__file__).parents[2]
DIGITS = f'{ROOT}/configs/digits.py'


def train_here(trial):
  """Trains in this process, without a report."""
  try:
    train_and_evaluate(trial.config, trial.workdir)
  except RunError as error:
    if 'is not finite' not in str(error):
      raise


def flags_for(out, data_dir):
  return [
    f'--config={DIGITS}',
    f'--config.data.dir={data_dir}',
    '--config.data.backend=numpy',
    '--config.mapper=vmap',
    '--config.workers=2',
    '--config.steps=4',
    '--config.checkpoint.every=2',
    '--config.schedule.warmup_epochs=0.0',
    '--methods=selsync,bsp',
    '--seeds=1',
    '--lrs=0.1,1e20',  # At the second, gradients overflow.
    f'--out={out}',
  ]


def compare(out, data_dir, *flags):
  """Runs the command in this process; returns what it printed."""
  output = io.StringIO()
  own = ('--config.model.name=perceptron', *flags)
  with contextlib.redirect_stdout(output):
    command.main([*flags_for(out, data_dir), *own], run=train_here)
  return output.getvalue()


@pytest.fixture(scope='module')
def compared(tmp_path_factory, data_dir):
  out = tmp_path_factory.mktemp('compare')
  return out, compare(out, data_dir)


def summary(out, folder):
  return json.loads((out / folder / 'seed0' / 'summary.json').read_text())


LABELS = ['selsync, delta 1', 'bsp']
SELSYNC, BSP = 'selsync-delta1-lr0.1', 'bsp-lr0.1'


def rows_of(out):
  """The rows of the table in Markdown, by column."""
  head, _, *lines = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in (out / 'comparison.md').read_text().splitlines()
    if line.startswith('|')
  ]
  return [dict(zip(head, line, strict=True)) for line in lines]


def test_the_table_shows_the_summaries_of_the_runs(compared):
  out, printed = compared
  selsync, bsp = summary(out, SELSYNC), summary(out, BSP)
  ours, theirs = rows_of(out)
  assert [ours['method'], theirs['method']] == LABELS
  for row, run in ((ours, selsync), (theirs, bsp)):
    assert row['learning rate'] == '0.1' and row['seeds'] == '1'
    assert row['steps'] == '4'
    assert float(row['LSSR']) == pytest.approx(run['lssr'], abs=5e-4)
    for split in ('validation', 'test'):
      assert row[f'{split} accuracy'] == f'{run[f"{split}_accuracy"]:.4f}'
    assert row['seconds'] == f'{run["seconds"]:.1f}'
  difference = selsync['validation_accuracy'] - bsp['validation_accuracy']
  assert ours['difference to BSP'] == f'{difference:+.4f}'
  assert theirs['difference to BSP'] == '–' and theirs['of BSP'] == '100.0%'
  for row in (ours, theirs):
    (shown,) = (
      x for x in printed.splitlines() if x.startswith(f'{row["method"]} ')
    )
    assert row['validation accuracy'] in shown and row['of BSP'] in shown
  best = (out / 'comparison.md').read_text().splitlines()[-1]
  assert f'{best}\n{out}/comparison.html\n' in printed


def test_a_rate_at_which_a_run_diverges_is_tried_and_not_chosen(compared):
  out, _ = compared
  assert not (out / 'bsp-lr1e+20' / 'seed0' / 'summary.json').exists()
  text = (out / 'comparison.html').read_text()
  assert 'too favorable, because these scores chose the learning rates' in text
  grid = re.search('<section id="grid">.*?</section>', text, re.S)[0]
  assert grid.count('<td>yes</td>') == 2
  for line in re.findall('<tr><th scope="row">.*?</tr>', grid):
    assert ('learning rate 1e+20' in line) == ('<td>yes</td>' not in line)


def test_the_page_shows_the_figures_and_links_to_the_runs(compared):
  out, _ = compared
  text = (out / 'comparison.html').read_text()
  for name in (
    'front-accuracy',
    'front-loss',
    'communication',
    'loss',
    'accuracy',
  ):
    assert f'<section id="{name}">' in text
    for kind, start in (
      ('png', b'\x89PNG'),
      ('svg', b'<?xml'),
      ('pdf', b'%PDF'),
    ):
      file = out / 'plots' / f'{name}.{kind}'
      assert file.read_bytes().startswith(start)
  links = re.findall('<a href="(.*?)">', text)
  assert links == [f'{run}/seed0/report.html' for run in (SELSYNC, BSP)]


def test_latex_has_the_table_without_the_seconds_of_this_machine(compared):
  (about, begin, _, head, _, *lines, _, end) = (
    (compared[0] / 'comparison.tex').read_text().splitlines()
  )
  assert about.startswith('% mean ± sample standard deviation over seeds')
  assert begin.startswith(r'\begin{tabular}{lr') and end == r'\end{tabular}'
  assert head.startswith(r'method & validation accuracy & difference to BSP & ')
  for line, row in zip(lines, rows_of(compared[0]), strict=True):
    assert row.pop('seconds')
    cells = line.removesuffix(r' \\').split(' & ')
    assert [cell.replace(r'\%', '%').replace('--', '–') for cell in cells] == [
      *row.values()
    ]


def test_columns_and_baseline_hold_for_every_form_of_the_table(
  compared, data_dir, tmp_path
):
  out = shutil.copytree(compared[0], tmp_path / 'copy')
  printed = compare(
    *(out, data_dir, '--lrs=0.1', '--baseline=selsync'),
    '--columns=test_loss,of_bsp,difference,seconds,waited',
  )
  head = ['test loss', 'of BSP', 'difference to selsync', 'seconds', 'waited']
  selsync, bsp = rows_of(out)
  assert [*bsp] == ['method', *head]
  losses, scores = (
    [summary(out, folder)[f] for folder in (SELSYNC, BSP)]
    for f in ('test_loss', 'validation_accuracy')
  )
  assert bsp['test loss'] == f'{losses[1]:.4f}' and bsp['waited'] == '–'
  assert selsync['difference to selsync'] == '–'
  above = scores[1] - scores[0]
  assert bsp['difference to selsync'] == f'{above:+.4f}'
  latex = (out / 'comparison.tex').read_text()
  assert f'method & {" & ".join(head)} ' in latex
  assert 'difference' in printed and 'LSSR' not in printed


def test_a_baseline_may_lack_the_field_of_a_sweep(compared, data_dir, tmp_path):
  out = shutil.copytree(compared[0], tmp_path / 'copy')
  compare(
    out, data_dir, '--lrs=0.1', '--baseline=bsp', '--sweep=sync.delta=1.0'
  )
  assert all('difference to bsp' in row for row in rows_of(out))


@pytest.mark.slow
def test_compare_in_python_returns_what_the_command_writes(
  compared, data_dir, tmp_path, capsys
):
  """The runs are trained beforehand; training in a process takes long."""
  out = shutil.copytree(compared[0], tmp_path / 'copy')
  given = [
    flag.removeprefix('--config.').split('=')
    for flag in flags_for(out, data_dir)
    if flag.startswith('--config.')
  ]
  fields = dict(given) | {'model.name': 'perceptron'}
  found = ss.compare(DIGITS, ['selsync', 'bsp'], out, fields=fields, seeds=1)
  assert list(found.rows) == LABELS
  assert found.page == out / 'comparison.html'
  assert found.markdown == (out / 'comparison.md').read_text()
  assert ss.comparison(out) == found.records
  for record, label, folder in zip(
    found.records, LABELS, (SELSYNC, BSP), strict=True
  ):
    run = summary(out, folder)
    assert record['method'] == label and record['seeds'] == 1
    assert {k: record[k] for k in run if k != 'method'} == pytest.approx(
      {k: v for k, v in run.items() if k != 'method'}
    )
    assert record['test_loss_sd'] is record['difference_low'] is None
  with pytest.raises(ConfigError, match='holds no table; run the command of'):
    ss.comparison(tmp_path)
  assert f'{found.best}.' in capsys.readouterr().out


def test_an_interrupted_run_resumes_and_a_finished_one_stays(
  compared, data_dir, tmp_path
):
  out = shutil.copytree(compared[0], tmp_path / 'again')
  cut, whole = out / BSP / 'seed0', out / SELSYNC / 'seed0'
  lines = (cut / 'metrics.jsonl').read_text().splitlines()
  (cut / 'summary.json').unlink()  # Like a run killed at step 3.
  shutil.rmtree(cut / 'checkpoints' / '4')
  (cut / 'metrics.jsonl').write_text('\n'.join(lines[:3]) + '\n' + lines[3][:9])
  stamp = (whole / 'summary.json').stat().st_mtime_ns
  printed = compare(out, data_dir, '--lrs=0.1')
  assert (whole / 'summary.json').stat().st_mtime_ns == stamp
  assert re.findall(r'^\d/\d.*', printed, re.M) == [f'2/2  {cut}']
  again = [
    json.loads(x) for x in (cut / 'metrics.jsonl').read_text().splitlines()
  ]
  assert [row['step'] for row in again] == [1, 2, 3, 4]
  for row, line in zip(again, lines, strict=True):
    assert row['loss'] == json.loads(line)['loss']


def test_a_folder_with_runs_of_another_config_is_refused(compared, data_dir):
  out, _ = compared
  with raises(
    ConfigError,
    f'{out}/{SELSYNC}/seed0: holds a run with steps=4, not 5; '
    'choose another --out',
  ):
    compare(out, data_dir, '--config.steps=5')


def test_a_smoke_comparison_has_a_folder_of_its_own(monkeypatch):
  monkeypatch.chdir(ROOT)
  for variant, folder in (('', ''), (':smoke', '-smoke')):
    flags = [f'--config=configs/stdlib_gpt.py{variant}', '--methods=all']
    options = command.parse([*flags, '--seeds=1'])
    assert options.out.name == f'compare-stdlib_gpt{folder}'
    assert [t.config.sync.method for t in options.trials] == list(METHODS)


@pytest.mark.slow
def test_a_simulation_compares_methods_of_both_kinds_on_one_clock(tmp_path):
  flags = [
    f'--config={DIGITS}',
    '--simulate',
    '--methods=bsp,asp',
    '--seeds=1',
    '--config.steps=4',
    '--config.data.backend=numpy',
    '--config.model.name=perceptron',
    '--config.virtual_cluster.compute=delays',
    f'--out={tmp_path}',
  ]
  output = io.StringIO()
  with contextlib.redirect_stdout(output):
    command.main(flags, run=lambda trial: simulate(trial.config, trial.workdir))
  bsp, asp = rows_of(tmp_path)
  for row, folder in ((bsp, BSP), (asp, 'asp-lr0.1')):
    outcome = summary(tmp_path, folder)
    assert row['virtual seconds'] == f'{outcome["virtual_seconds"]:.1f}'
    assert row['staleness'] == f'{outcome["staleness"]:.2f}'
  assert float(asp['virtual seconds']) < float(bsp['virtual seconds'])
  assert asp['LSSR'] == '–' and float(bsp['LSSR']) == 0
  assert (tmp_path / 'plots' / 'staleness.png').exists()
  command.main(flags, run=pytest.fail)  # Nothing is left to run.


def test_a_simulation_compares_every_method_unless_some_are_named(tmp_path):
  flags = [f'--config={DIGITS}', '--seeds=1', f'--out={tmp_path}', '--simulate']
  found = command.parse(flags).trials
  assert [trial.config.sync.method for trial in found] == [
    *METHODS,
    *ASYNCHRONOUS,
  ]
  assert {trial.command for trial in found} == {'simulate'}


def test_two_comparisons_cannot_write_in_one_folder(tmp_path, refused):
  out = tmp_path / 'comparison'
  with workdir.claimed(out, '--out'):
    assert refused('compare', '--methods=bsp', f'--out={out}', code=1) == (
      f'compare: --out={out}: another process is writing its runs there '
      f'(pid {os.getpid()} on {socket.gethostname()})'
    )


def test_all_leaves_out_and_names_methods_that_a_config_cannot_have(
  tmp_path, capsys
):
  flags = ['--config=hyperplane', '--config.workers=3', '--methods=all']
  found = command.parse([*flags, '--seeds=1', f'--out={tmp_path}']).trials
  assert [t.config.sync.method for t in found] == [
    method for method in METHODS if method != 'groups'
  ]
  assert capsys.readouterr().out == (
    'left out: groups: config.sync: 3 workers cannot be divided into groups '
    'of 2\n'
  )


OWN = """
import selsync_jax as ss
from selsync_jax.configs import digits
from selsync_jax.sync import averagers, strategy, triggers

@ss.register_method
def fast(context):
  return strategy.Strategy(triggers.every(1), averagers.mean())

@ss.register_method
def slow(context):
  return strategy.Strategy(triggers.every(2), averagers.mean())

get_config = digits.get_config
"""


def test_a_method_that_was_edited_is_trained_again_and_no_other(
  tmp_path, capsys
):
  file, out = tmp_path / 'mine.py', tmp_path / 'out'
  trained = []
  summary = dict.fromkeys(
    ('samples', 'bytes_per_worker', 'seconds', 'samples_per_second'), 0
  )
  summary |= {'method': 'fast', 'workers': 4, 'steps': 4}
  summary['bytes_per_worker_bsp'] = 0

  def write(period):
    file.write_text(OWN.replace('every(2)', f'every({period})'))

  def run_all(edited=None):
    """Writes the files by which a run is known to be finished."""

    def run(trial):
      if edited:
        write(edited)
      trained.append(trial.label)
      code = config_file.settings(f'{file}:{trial.label}', ()).code
      trial.workdir.mkdir(parents=True)
      fingerprint.write(trial.workdir, code)
      files.write_json(trial.workdir / records.SUMMARY, summary)

    flags = [f'--config={file}', '--methods=fast,slow', '--seeds=1']
    with own_code.forgotten():
      trials = command.parse([*flags, f'--out={out}']).trials
      pool.Processes(1).run_all(trials, run)

  write(2)
  run_all()
  run_all()
  assert trained == ['fast', 'slow']
  write(30)
  run_all()
  assert trained == ['fast', 'slow', 'slow']
  (moved,) = out.glob('slow*/seed0.1')
  assert (
    capsys.readouterr().out.count(
      f'{moved.with_suffix("")}: the code of its method has changed: '
      f'slow; the run is repeated, and the old run is in {moved}\n'
    )
    == 1
  )
  (moved.with_suffix('') / fingerprint.FINGERPRINT).unlink()
  run_all()  # An earlier version's run has nothing to compare.
  assert trained == ['fast', 'slow', 'slow']
  shutil.rmtree(moved.with_suffix(''))
  with pytest.raises(RunError, match=r'slow, while runs were tr'):
    run_all(edited=400)


@pytest.mark.slow  # Its processes import a whole run.
def test_the_processes_of_a_comparison_import_the_neighbor_of_its_config(
  tmp_path,
):
  (tmp_path / 'here').mkdir()
  for folder, period in ((tmp_path, 2), (tmp_path / 'here', 1)):
    (folder / 'neighbor.py').write_text(f'PERIOD = {period}\n')
  own = OWN.replace('every(2)', 'every(neighbor.PERIOD)')
  (tmp_path / 'mine.py').write_text(f'import neighbor\n{own}')

  def compare():
    return live_runs.run(
      *(sys.executable, '-m', 'selsync_jax', 'compare', '--methods=slow'),
      *(f'--config={tmp_path / "mine.py"}', '--seeds=1', '--config.steps=4'),
      *('--config.data.backend=numpy', '--config.mapper=vmap'),
      f'--out={tmp_path / "out"}',
      cwd=tmp_path / 'here',
      env=os.environ,
    )

  def syncs():
    (summary,) = (tmp_path / 'out').glob('*/seed0/summary.json')
    return json.loads(summary.read_text())['sync_steps']

  first, second = compare(), compare()
  assert first.returncode == second.returncode == 0, first.stderr
  assert 'has changed' not in second.stdout and syncs() == 2
  (tmp_path / 'neighbor.py').write_text('PERIOD = 1\n')
  assert 'method has changed: PERIOD' in compare().stdout
  assert syncs() == 4
