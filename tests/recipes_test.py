"""The recipes of docs/recipes, without their clusters."""

import importlib.util
import os
import pathlib
import re
import runpy
import subprocess
import sys
from unittest import mock

from jax._src import clusters
import pytest
import yaml

from selsync_jax import config
from selsync_jax.cluster import connection, processes, signals
from selsync_jax.commands import train
from selsync_jax.islands.server import CoordinatorServer
from tests.support import live_runs

RECIPES = pathlib.Path(__file__).parents[1] / 'docs' / 'recipes'


@pytest.mark.parametrize('script', sorted(RECIPES.glob('*.sh')))
def test_a_recipe_is_a_script_that_bash_reads(script):
  subprocess.run(['bash', '-n', str(script)], check=True)
  text = script.read_text()
  is_island = script.name.startswith('islands')
  secret = 'SELSYNC_INVITATION' if is_island else 'SELSYNC_CLUSTER_TOKEN'
  assert re.search(r'python \S*(train|own_loop)\.py ', text) and secret in text
  assert os.access(script, os.X_OK)


def slurm(script, task):
  """The variables that Slurm gives a task of a batch script."""
  options = dict(re.findall(r'^#SBATCH --([\w-]+)=(\S+)', script, re.M))
  nodes, tasks = int(options['nodes']), int(options['ntasks-per-node'])
  given = {
    'SLURM_JOB_ID': '1',
    'SLURM_STEP_NODELIST': f'node[0-{nodes - 1}]',
    'SLURM_STEP_NUM_NODES': str(nodes),
    'SLURM_NTASKS': str(nodes * tasks),
    'SLURM_PROCID': str(task),
    'SLURM_LOCALID': str(task % tasks),
  }
  for option in ('gpus-per-task', 'gpu-bind'):
    if option in options:
      name = f'SLURM_{option.replace("-", "_").upper()}'
      given[name] = options[option]
  return given


@pytest.mark.parametrize(
  'recipe, change, devices',
  [
    ('slurm.sh', ('', ''), [3]),  # One of the eight GPUs of its node.
    ('slurm.sh', ('--gpus-per-node=8', '--gpus-per-task=1'), []),
    (
      'slurm.sh',
      ('--gpus-per-node=8', '--gpus-per-task=1\n#SBATCH --gpu-bind=none'),
      [3],
    ),
    ('slurm_host_per_worker.sh', ('', ''), []),
  ],
)
def test_a_task_has_the_gpus_of_its_workers(
  recipe, change, devices, monkeypatch
):
  """An empty list means every GPU that the task can see."""
  script = (RECIPES / recipe).read_text().replace(*change)
  for name, value in slurm(script, task=11).items():
    monkeypatch.setenv(name, value)
  address, _, process, found = (
    clusters.ClusterEnv.auto_detect_unset_distributed_params(
      None, None, None, processes.device_ids(os.environ), None, 1
    )
  )
  assert (process, found) == (11, devices)
  assert address.startswith('node0:')


@pytest.mark.parametrize('script', sorted(RECIPES.glob('*slurm*.sh')))
@pytest.mark.parametrize(
  'code, restarts, repeats',
  [
    *[(0, 0, False), (2, 0, False), (75, 99, True), (130, 99, True)],
    *[(1, 0, True), (137, 9, True), (1, 10, False)],
  ],
)
def test_slurm_repeats_a_job_as_its_exit_code_asks(
  script, code, restarts, repeats, tmp_path
):
  """Stand-ins for Slurm's programs; the last one writes a file."""
  (tmp_path / '.venv' / 'bin').mkdir(parents=True)
  activate = '#!/bin/sh\nPATH="$PWD/.venv/bin:$PATH"\n'
  programs = {
    'activate': activate,
    'srun': f'#!/bin/sh\nexit {code}\n',
    'scontrol': '#!/bin/sh\necho "$@" > requeued\n',
  }
  for name, text in programs.items():
    (program := tmp_path / '.venv' / 'bin' / name).write_text(text)
    program.chmod(0o755)
  given = {
    'SLURM_SUBMIT_DIR': str(tmp_path),
    'SLURM_JOB_NAME': 'job',
    'SLURM_RESTART_COUNT': str(restarts),
    'SELSYNC_INVITATION': 'secret',
  }
  counts = 'JOB_ID', 'NTASKS', 'NNODES', 'ARRAY_JOB_ID'
  counts += 'ARRAY_TASK_ID', 'ARRAY_TASK_COUNT'
  given |= {f'SLURM_{name}': '4' for name in counts}
  done = subprocess.run(['bash', str(script)], env=os.environ | given)
  assert done.returncode == code
  assert (tmp_path / 'requeued').exists() == repeats


@pytest.mark.parametrize('recipe', sorted(RECIPES.glob('job*.yaml')))
def test_a_jobset_gives_each_pod_its_place(recipe):
  text = recipe.read_text()
  jobset = yaml.safe_load(text)
  assert (jobset['apiVersion'], jobset['kind']) == (
    'jobset.x-k8s.io/v1alpha2',
    'JobSet',
  )
  (group,) = jobset['spec']['replicatedJobs']
  job = group['template']['spec']
  assert job['completionMode'] == 'Indexed'
  assert job['parallelism'] == job['completions']
  pod = job['template']['spec']
  (container,) = pod['containers']
  env = {entry['name']: entry for entry in container['env']}
  assert env['JAX_NUM_PROCESSES']['value'] == str(job['completions'])
  name = jobset['metadata']['name']
  host, port = env['JAX_COORDINATOR_ADDRESS']['value'].split(':')
  # JobSet names pods SET-GROUP-JOB-INDEX, in a subdomain of the set's name.
  assert host == f'{name}-{group["name"]}-0-0.{name}'
  assert int(port) in [p['containerPort'] for p in container['ports']]
  index = env['JAX_PROCESS_ID']['valueFrom']['fieldRef']['fieldPath']
  assert 'job-completion-index' in index
  token = env['SELSYNC_CLUSTER_TOKEN']['valueFrom']['secretKeyRef']
  assert f'generic {token["name"]} --from-literal={token["key"]}=' in text
  volumes = {volume['name'] for volume in pod['volumes']}
  assert {mount['name'] for mount in container['volumeMounts']} <= volumes
  command = container['command']
  assert f'--config.workers={job["completions"]}' in command
  devices = container['resources']['limits']['nvidia.com/gpu']
  assert devices == 1 or f'--config.mesh.data={devices}' in command


def test_a_job_gives_each_pod_the_name_of_an_island():
  text = (RECIPES / 'islands_job.yaml').read_text()
  service, deployment, job = yaml.safe_load_all(text)
  islands = job['spec']['completions']
  assert job['spec']['parallelism'] == islands
  (pod,), (point,) = (
    each['spec']['template']['spec']['containers'] for each in (job, deployment)
  )
  assert f'--islands={islands}' in point['command']
  assert f'--config.workers={islands}' in pod['command']
  host, ports = service['metadata']['name'], service['spec']['ports']
  assert f'--host={host}' in point['command']
  assert '--metrics=0.0.0.0:9464' in point['command']
  assert [port['port'] for port in ports] == [7070, 9464]
  assert point['ports'] == [{'containerPort': 7070}, {'containerPort': 9464}]
  assert (
    service['spec']['selector']
    == (deployment['spec']['template']['metadata']['labels'])
  )
  env = {entry['name']: entry for entry in pod['env']}
  secret = env['SELSYNC_INVITATION']['valueFrom']['secretKeyRef']
  assert f'{secret["name"]} \\' in text
  assert f'--from-literal={secret["key"]}=' in text
  assert job['spec']['completionMode'] == 'Indexed'
  assert '--island=$(PREFIX)$(JOB_COMPLETION_INDEX)' in pod['command']
  assert env['PREFIX']['value']
  (volume,) = deployment['spec']['template']['spec']['volumes']
  assert not volume['secret']['defaultMode'] & 0o077  # `--keep` refuses it.


def test_a_job_repeats_islands_as_their_exit_codes_ask():
  *_, job = yaml.safe_load_all((RECIPES / 'islands_job.yaml').read_text())
  spec = job['spec']
  # Kubernetes accepts the policy and the limit only with these two.
  assert spec['template']['spec']['restartPolicy'] == 'Never'
  assert spec['completionMode'] == 'Indexed'
  assert spec['backoffLimitPerIndex'] == 10
  rules = spec['podFailurePolicy']['rules']
  asked = {
    code: rule['action']
    for rule in rules
    for code in rule.get('onExitCodes', {}).get('values', ())
  }
  assert asked == {
    config.ConfigError.code: 'FailIndex',
    signals.RESUMABLE: 'Ignore',
    signals.STOPPED: 'Ignore',
  }


def skypilot(name, folder, **variables):
  """The arguments of `train.py` on a host of a SkyPilot task."""
  task = yaml.safe_load((RECIPES / name).read_text())
  required = {**task.get('envs', {}), **task['secrets']}
  assert set(required.values()) == {None}
  assert required.keys() <= variables.keys()
  for script in task['setup'], task['run']:
    subprocess.run(['bash', '-n'], input=script, text=True, check=True)
  python = folder / '.venv' / 'bin' / 'python'
  python.parent.mkdir(parents=True)
  python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
  python.chmod(0o755)
  done = subprocess.run(
    ['bash', '-c', task['run']],
    **{'cwd': folder, 'env': os.environ | variables},
    **{'stdout': subprocess.PIPE, 'text': True, 'check': True},
  )
  script, *arguments = done.stdout.splitlines()
  assert script == 'train.py'
  return arguments


def test_skypilot_gives_each_host_its_place(tmp_path, monkeypatch):
  arguments = skypilot(
    'skypilot.yaml',
    tmp_path,
    SELSYNC_CLUSTER_TOKEN='secret',
    SKYPILOT_NODE_IPS='10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4',
    SKYPILOT_NUM_NODES='4',
    SKYPILOT_NODE_RANK='2',
  )
  monkeypatch.chdir(live_runs.ROOT)
  options = train.parse(arguments)
  assert options.spec == ('10.0.0.1:7070', 4, 2)
  assert options.settings.config.workers == 4


def test_skypilot_gives_each_island_its_name(tmp_path, monkeypatch):
  variables = {'SELSYNC_ISLAND': 'aws', 'SELSYNC_INVITATION': 'secret'}
  arguments = skypilot('skypilot_islands.yaml', tmp_path, **variables)
  monkeypatch.chdir(live_runs.ROOT)
  for name, value in variables.items():
    monkeypatch.setenv(name, value)
  options = train.parse(arguments)
  assert (options.island, options.join) == ('aws', 'secret')
  assert options.settings.config.workers == 2


RAY = RECIPES / 'ray_processes.py'


def test_ray_gives_each_process_its_place(monkeypatch):
  """A stand-in has the names that the recipe imports from Ray."""
  names = 'ray', 'ray.util', 'ray.util.scheduling_strategies'
  stand_in = dict.fromkeys(names, mock.MagicMock())
  with mock.patch.dict(sys.modules, stand_in):
    given = runpy.run_path(str(RAY))['variables']('node0:7070', 4, 2, 'secret')
  for name, value in given.items():
    monkeypatch.setenv(name, value)
  assert processes.process_spec() == ('node0:7070', 4, 2)
  assert os.environ[connection.TOKEN] == 'secret'


@pytest.mark.slow
@pytest.mark.skipif(
  not importlib.util.find_spec('ray'), reason='needs Ray: pip install ray'
)
def test_two_processes_of_ray_train_as_one_run(tmp_path):
  done = live_runs.run(
    *(sys.executable, RAY, '--processes=2', '--'),
    *(sys.executable, RECIPES / 'own_loop.py', tmp_path / 'run', '100'),
    env=os.environ
    | {'JAX_NUM_CPU_DEVICES': '2', 'RAY_USAGE_STATS_ENABLED': '0'},
  )
  assert done.returncode == 0, done.stdout + done.stderr
  (line,) = re.findall(r'step 100: loss 0\.\d+, synchronized: .*', done.stdout)
  assert line
  assert (tmp_path / 'run' / '100').exists()


@pytest.mark.slow
def test_the_hook_for_tunix_trains_there():
  pytest.importorskip('tunix', reason='needs the extra reference')
  with CoordinatorServer(islands=1) as point:
    # Its libraries warn about each other.
    given = {'PYTHONWARNINGS': '', 'SELSYNC_INVITATION': str(point.invitation)}
    done = live_runs.run(
      *(sys.executable, RECIPES / 'tunix_island.py', 'maui'),
      env=os.environ | given,
    )
  assert done.returncode == 0, done.stderr
  assert done.stdout.split() == ['[[1.]', '[1.]', '[1.]]']
