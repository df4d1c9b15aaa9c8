"""Post-local SGD of torch.distributed, on several processes.

  python -m tests.support.torch_local_sgd FOLDER

Reads `FOLDER/problem.npz` and `FOLDER/variants.json`. For each variant, writes
the parameters of every worker after every step, [steps, workers, size], into
`FOLDER/torch.npz`. Needs no JAX.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from torch import nn
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import post_localSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer

LEARNING_RATE, WEIGHT_DECAY = 0.1, 0.01


def train(problem, switch, period, momentum):
  """This process's parameters after every step, [steps, size]."""
  layers = [nn.Linear(6, 8), nn.Linear(8, 1)]
  with torch.no_grad():
    for i, layer in enumerate(layers):
      layer.weight.copy_(torch.tensor(problem[f'w{i}'].T))
      layer.bias.copy_(torch.tensor(problem[f'b{i}'][0]))
  model = nn.parallel.DistributedDataParallel(
    nn.Sequential(layers[0], nn.Tanh(), layers[1])
  )
  state = post_localSGD_hook.PostLocalSGDState(
    process_group=None,
    subgroup=None,
    start_localSGD_iter=switch,
    post_local_gradient_allreduce=False,
  )
  model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
  optimizer = PostLocalSGDOptimizer(
    torch.optim.SGD(
      model.parameters(),
      LEARNING_RATE,
      momentum=momentum,
      weight_decay=WEIGHT_DECAY,
    ),
    # It averages right after its warmup, so the first round includes that.
    averagers.PeriodicModelAverager(period, warmup_steps=switch + period - 1),
  )
  trajectory = []
  x, y = (torch.tensor(problem[name][:, dist.get_rank()]) for name in 'xy')
  for inputs, targets in zip(x, y, strict=True):
    optimizer.zero_grad()
    torch.mean((model(inputs)[:, 0] - targets) ** 2).backward()
    optimizer.step()
    params = [p.detach().flatten() for p in model.parameters()]
    trajectory.append(torch.cat(params))
  return torch.stack(trajectory)


def worker(rank, workers, folder, problem, variants):
  torch.set_num_threads(1)
  dist.init_process_group(
    'gloo', init_method=f'file://{folder}/store', rank=rank, world_size=workers
  )
  found = {}
  for name, options in variants.items():
    mine = train(problem, **options)
    everyone = [torch.zeros_like(mine) for _ in range(workers)]
    dist.all_gather(everyone, mine)
    found[name] = torch.stack(everyone, 1).numpy()
  if rank == 0:
    np.savez(folder / 'torch.npz', **found)
  dist.destroy_process_group()


def main(folder):
  folder = pathlib.Path(folder)
  problem = dict(np.load(folder / 'problem.npz'))
  variants = json.loads((folder / 'variants.json').read_text())
  workers = problem['x'].shape[1]
  # Forked, so that PyTorch is imported once.
  torch.multiprocessing.start_processes(
    worker, (workers, folder, problem, variants), workers, start_method='fork'
  )


if __name__ == '__main__':
  main(sys.argv[1])
