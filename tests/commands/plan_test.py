"""`selsync plan`: its output, and its refusals."""

from concurrent import futures
import math
import pathlib
import re

import jax
import numpy as np
import optax
import pytest

import selsync_jax as ss
from selsync_jax.__main__ import run_command
from selsync_jax.commands import config_file, plan
from selsync_jax.config import ConfigError
from selsync_jax.devices.layout import Layout
from selsync_jax.islands import probing, server
from selsync_jax.methods import METHODS
from selsync_jax.sync import network
from selsync_jax.sync.traffic import Collective

ROOT = pathlib.Path(__file__).parents[2]


def test_the_table_adds_up(monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  run_command(
    [
      'plan',
      '--config=configs/digits.py:bsp',  # Picks none: all are shown.
      '--workers=6',
      '--bandwidth=12.5MB/s',
      '--latency=50us',
      '--lssr=0.75',
      '--steps=4',
      '--config.data.backend=numpy',
      '--config.model.name=perceptron',
      '--config.model.num_filters=2048',
    ]
  )
  output = capsys.readouterr().out
  figures = r'computes (.*) ms\n\(median of 3; quartiles (.*) and (.*)\)'
  compute, lower, upper = map(float, re.search(figures, output).groups())
  assert 0 < lower <= compute <= upper
  assert '6 workers, 614 kB of parameters' in output and plan.FORMULA in output
  rows = {}
  assert max(map(len, output.split(plan.FORMULA)[1].splitlines())) <= 80
  for line in output.splitlines():
    method, *cells = re.split('  +', line.strip())
    if method in METHODS:
      rows[method] = cells
  assert list(rows) == [method for method in METHODS if method != 'groups']
  refused = 'groups: butterfly groups need a power of two of workers, got 6'
  assert refused in output
  links = network.Network(6, 1e8, 50e-6)
  whole = 1e3 * links.seconds(Collective('all_reduce', 614_440))
  for name in ('selsync', 'bsp', 'local_sgd', 'diloco'):  # All-reduce all.
    lssr, average = float(rows[name][0]), float(rows[name][3])
    assert average == pytest.approx((1 - lssr) * whole, abs=0.1)
  # Its workloads have Adam, and send two moments at a third and a sixth.
  own, plain = (float(rows[name][3]) for name in ('des_loc', 'local_sgd'))
  assert own == pytest.approx((1 + 1 / 3 + 1 / 6) * plain, abs=0.02)
  for _, _, vote, average, hidden, _, step, speed_up in rows.values():
    assert hidden == '0.00'
    total = compute + float(vote) + float(average)
    assert float(step) == pytest.approx(total, abs=0.03)
    expected = (compute + whole) / total  # The cells are rounded.
    assert float(speed_up) == pytest.approx(expected, rel=0.01)
  assert float(rows['selsync'][0]) == 0.75
  least = math.ceil(whole / compute)
  assert abs(int(rows['local_sgd'][5]) - least) <= 1  # It is rounded.
  assert rows['bsp'][5] == '-'


def test_a_narrow_terminal_shows_the_deciding_columns(monkeypatch, capsys):
  monkeypatch.chdir(ROOT)
  monkeypatch.setenv('COLUMNS', '50')
  flags = ['--config.data.backend=numpy', '--config.model.name=perceptron']
  run_command(['plan', '--lssr=0.9', '--steps=3', *flags])
  output = capsys.readouterr().out
  assert max(map(len, output.splitlines())) <= 50
  (head,) = re.findall('^method .*', output, re.M)
  assert {'method', 'LSSR', 'step', 'speed-up'} <= {*head.split()}


def test_a_field_of_sync_is_for_the_methods_that_have_it():
  fields = [
    '--config.sync.vote_every=8',
    '--config.sync.delay=2',
    '--config.sync.period=16',
  ]
  fields += ['--config.workers=2']
  configs = plan._configs('digits', fields)
  assert configs['selsync'].sync.vote_every == 8
  assert configs['local_sgd'].sync.period == 16
  assert {config.workers for config in configs.values()} == {2}
  assert {config.sync.delay.steps for config in configs.values()} == {2}
  with pytest.raises(ConfigError, match='this config has no such field'):
    plan._configs('digits', ['--config.sync.vote_ever=8'])


GIVEN = '--lssr=0.9'
GIVEN_MODEL = '--parameters=12.5M', '--step=200ms'
MESH = '--config.mapper=mesh'
PIECES = '--config.accumulate=4'


@pytest.mark.parametrize(
  'flags, devices, times',
  [
    (['--config.mesh.data=8'], 8, 1),
    (['--config.mesh.data=2', '--config.mesh.fsdp=2'], 4, 1.5),
    (['--config.mesh.data=2', PIECES], 2, 4),
  ],
)
def test_devices_of_a_mesh_share_the_batch(
  flags, devices, times, monkeypatch, capsys
):
  monkeypatch.chdir(ROOT)
  run_command(
    [
      'plan',
      GIVEN,
      MESH,
      *flags,
      '--steps=3',
      '--inner-bandwidth=1Gbit',
      '--config.model.name=perceptron',
      '--config.data.backend=numpy',
    ]
  )
  output = capsys.readouterr().out
  figures = r'workers, (.*) kB.*\n.*computes (.*) ms\n.*\n'
  figures += r'shared by (.*) devices: (.*) ms,\nof which (.*) ms'
  size, alone, *found = map(float, re.search(figures, output).groups())
  inner = network.Network(devices, 1e9, 0)
  sent = 1e3 * times * inner.seconds(Collective('all_reduce', 1e3 * size))
  expected = [devices, alone / devices + sent, sent]
  assert found == pytest.approx(expected, rel=0.01, abs=0.01)


@pytest.mark.slow
def test_the_network_of_a_plan_may_be_measured(monkeypatch, capsys):
  """Between the islands that are invited; each of them prints a plan."""
  monkeypatch.setattr(probing, 'FETCHES', 3)
  monkeypatch.setenv('SELSYNC_ISLAND', 'maui')
  with (
    server.CoordinatorServer(2) as point,
    futures.ThreadPoolExecutor(1) as pool,
  ):
    invitation = str(point.invitation)
    other = pool.submit(probing.probe, invitation, 'oahu', 50_000_000)
    run_command(['plan', '--probe', invitation, *GIVEN_MODEL])
    links = other.result()
  output = capsys.readouterr().out
  assert 'from' in output and '2 workers, 50 MB' in output
  for (sender, receiver), name in {(0, 1): 'maui', (1, 0): 'oahu'}.items():
    mbit = links.bandwidth[sender, receiver] / 1e6
    ms = 1e3 * links.round_trip[sender, receiver]
    figures = re.escape(f'{mbit:.4g}, {ms:.2f}')  # 10 Gbit/s is 1e+04.
    assert re.search(rf'^{name} .*\b{figures}\b', output, re.M)
  worst = network.Network(2, links.slowest, 0.0)
  travel = 1e3 * worst.seconds(Collective('all_reduce', 50e6)) / 8
  (average,) = re.findall(r'^local_sgd .* MB +\S+ +(\S+)', output, re.M)
  assert travel < float(average)


@pytest.mark.slow
def test_any_model_can_be_planned_from_two_figures(capsys):
  """Python can plan, too; nothing is measured."""
  own = ['plan', *GIVEN_MODEL, '--workers=8']
  outputs = []
  for more in ([], ['--lssr=0.5']):
    run_command([*own, *more])
    outputs.append(capsys.readouterr().out)
  assert '8 workers, 50 MB of parameters' in outputs[0]
  assert 'computes 200.00 ms\n\nstep =' in outputs[0]
  found = [re.search('^selsync +(.*?) ', each, re.M)[1] for each in outputs]
  assert found == ['0.900', '0.500']
  params = np.empty(12_500_000, np.float32)
  moments = jax.eval_shape(optax.adam(0.1).init, params)
  costs = ss.plan(params, step_seconds=0.2, workers=8, opt_state=moments)
  cells = re.findall(r'^(\w+) .* (\d+\.\d\d) +\d+\.\d\d *$', outputs[0], re.M)
  steps = {name: float(step) for name, step in cells}
  del steps['power_sgd']  # It compresses only matrices.
  assert {name: 1e3 * costs[name].step for name in steps} == pytest.approx(
    steps, abs=0.02
  )
  with pytest.raises(ConfigError, match=r"^bandwidth='1Gib': must be a number"):
    ss.plan(params, step_seconds=0.2, workers=8, bandwidth='1Gib')


def layouts_of(capsys, *flags):
  """The output of `plan` for a perceptron on two hosts of eight devices."""
  own = '--config.data.backend=numpy', '--config.model.name=perceptron'
  run_command(['plan', '--hosts=2', '--devices=8', *own, *flags])
  return capsys.readouterr().out


@pytest.mark.slow
def test_the_best_layouts_are_shown_with_flags_that_train_in_them(
  monkeypatch, capsys, tmp_path
):
  monkeypatch.chdir(tmp_path)
  output = layouts_of(capsys, '--step=1ms', '--lssr=0.75')
  assert '128 examples a step; a device computes its 8 in 1.00 ms' in output
  flags = dict(re.findall('^(.*x.*x.*): (--.*)', output, re.M))
  rows = re.findall(r'^(\S+x\S+) +(\S+) +0\.750 ', output, re.M)
  steps = [float(step) for _, step in rows]
  assert [*flags] == [name for name, _ in rows]
  assert steps == sorted(steps) and len(steps) == 3
  words = '--config.workers=2 --config.batch_size=64 --config.mapper=mesh'
  assert flags['2x8x1'] == f'{words} --config.mesh.data=8'
  own = config_file.settings('digits', flags['2x8x1'].split())
  assert own.mapper == Layout(2, 8, 1)


def test_layouts_that_do_not_fit_say_how_much_they_lack(
  monkeypatch, capsys, tmp_path
):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(SystemExit):
    layouts_of(capsys, '--step=1ms', '--memory=1kB')
  output, error = capsys.readouterr()
  assert error.startswith('plan: --memory=1 kB: no layout fits')
  found = re.findall('^(.*): does not fit, lacks (.*) kB', output, re.M)
  lacking = {name: float(size) for name, size in found}
  assert len(lacking) == 10
  assert lacking['2x1x8'] < lacking['2x2x4'] < lacking['2x8x1']
  assert '1x16x1, 1x8x2, 1x4x4, 1x2x8, 1x1x16: workers must be at' in output


@pytest.mark.parametrize(
  'latency, lssr, ahead',
  [
    (10, 0.98, 0.02 * 100),  # An average repeats a step of 100 ms.
    (10, 0.5, 20),  # It would cost more than the round trip.
    (80, 0.9, 0.9 * 60 + 0.1 * 160),  # A step does not hide all of it.
  ],
)
def test_a_vote_between_islands_is_waited_for_unless_the_next_step_hides_it(
  latency, lssr, ahead
):
  params = {'w': np.zeros(1000, np.float32)}
  costs = ss.plan(
    params, step_seconds=0.1, workers=8, latency=f'{latency}ms', lssr=lssr
  )
  assert costs['selsync'].ahead == pytest.approx(ahead / 1e3)
  assert costs['local_sgd'].ahead == 0
