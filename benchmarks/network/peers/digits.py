"""The network and the step of workers in PyTorch."""

from collections.abc import Callable

from sklearn import datasets
import torch
from torch import nn

from benchmarks.network import peers


def create() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], None]]:
  """Returns a network, its optimizer, and a function that takes a step."""
  torch.set_num_threads(1)
  torch.manual_seed(0)  # Equal weights on all workers.
  image, label = map(torch.tensor, datasets.load_digits(return_X_y=True))
  image = image[:1100].float() / 16
  network = nn.Sequential(
    *(nn.Linear(64, peers.WIDTH), nn.ReLU()),
    *(nn.Linear(peers.WIDTH, peers.WIDTH), nn.ReLU()),
    nn.Linear(peers.WIDTH, 10),
  )
  optimizer = torch.optim.SGD(network.parameters(), peers.RATE)
  torch.seed()  # Other batches.

  def step():
    batch = torch.randint(len(image), (peers.BATCH,))
    optimizer.zero_grad()
    scores = network(image[batch])
    nn.functional.cross_entropy(scores, label[batch]).backward()
    optimizer.step()

  return network, optimizer, step
