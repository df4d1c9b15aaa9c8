"""Text: a sequence of tokens, divided into segments of equal length."""

from typing import Any

import numpy as np


def segments(tokens: np.ndarray, bptt: int) -> np.ndarray:
  """Divides tokens [n] into segments [examples, bptt + 1].

  The last token of a segment, a target, is the first of the next, an input.
  Fewer than bptt tokens at the end are dropped.

  Raises:
    ValueError: if there are too few tokens for one segment.
  """
  if len(tokens) <= bptt:
    raise ValueError(
      f'bptt={bptt} asks for more than the {len(tokens)} tokens of a split'
    )
  windows = np.lib.stride_tricks.sliding_window_view(tokens, bptt + 1)
  return np.ascontiguousarray(windows[::bptt])


def next_token(examples: Any) -> Any:
  """Returns inputs, and as targets the token that follows each."""
  tokens = examples['tokens']
  return {'inputs': tokens[:, :-1], 'targets': tokens[:, 1:]}
