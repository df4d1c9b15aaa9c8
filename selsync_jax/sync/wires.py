"""Wires: the encodings of an average, in float32 or in fewer bits.

A compressed wire sends the change since the last consensus, which all workers
know. It adds its rounding errors to the next message (error feedback), so
nothing is lost, only delayed. An average takes two messages. In the first, each
worker sends every other worker its share of the vector (an all-to-all). It adds
up the received shares in float32, and sends the mean of its share to all (an
all-gather). The worker that rounds a mean keeps the error. All workers decode
the same bits, so they stay bit-identical.

References:
  Seide et al., `1-Bit Stochastic Gradient Descent`, Interspeech 2014 (error
    feedback).
  Tang et al., `DoubleSqueeze: Parallel Stochastic Gradient Descent with
    Double-Pass Error-Compensated Compression`, ICML 2019 (both stages).
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from selsync_jax.sync import flat, resizing, worker_mesh
from selsync_jax.sync.consensus import AXIS, consensus
from selsync_jax.sync.part import Part, part

BLOCK = 256
"""Elements that share one scale."""


@dataclasses.dataclass(frozen=True, repr=False)
class Wire(Part):
  """The encoding of an average.

  Attributes:
    init: `init(tree) -> state`.
    mean: `mean(tree, state, where=None, count=None) -> (tree, state)`: the mean
      over workers of the floating-point leaves, equal on all workers; `where`
      and `count` as in `consensus`.
    rebase: `rebase(tree, state) -> state`, called after an averager has changed
      the mean to `tree` on all workers.
    exact: whether values travel without rounding.
    coarse: whether a value may be rounded to zero because others are larger.
    withholds: whether many changes are sent several averages later. That suits
      sums of steps. A running average would forget the last mean meanwhile, be
      corrected twice, and diverge.
    resize: the rule for the state of another number of workers, see `resizing`.
  """

  init: Callable[[Any], Any]
  mean: Callable[..., tuple[Any, Any]]
  _: dataclasses.KW_ONLY
  rebase: Callable[[Any, Any], Any] = lambda tree, state: state
  exact: bool = False
  coarse: bool = False
  withholds: bool = False
  resize: resizing.Resize = resizing.first


@part
def float32(*, axis_name: str = AXIS) -> Wire:
  """Sends uncompressed values, in one all-reduce for each dtype."""

  def mean(tree, state, **members):
    return consensus(tree, **members, axis_name=axis_name), state

  return Wire(
    lambda tree: (),
    mean,
    exact=True,
  )


FLOAT32 = float32()
"""The default wire of other parts."""


class Codec(NamedTuple):
  """An encoding of float32 in fewer bits.

  `encode` turns float32 [..., size] into a message [..., *] of integers, and
  `decode` turns it back; `size` is a multiple of `BLOCK`.
  """

  encode: Callable[[Float32[Array, '...']], Array]
  decode: Callable[[Array], Float32[Array, '...']]


def integers(bits: int) -> Codec:
  """Returns the encoding in integers of 4 or 8 bits.

  A block is rounded to multiples of its scale, from -m to m, where m is the
  largest integer.
  """
  most = 2 ** (bits - 1) - 1

  def quantize(blocks):
    scale = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True) / most
    return jnp.round(blocks / jnp.where(scale > 0, scale, 1)), scale

  return _packed(bits, quantize, lambda codes: codes)


LEVELS, BORDER = (0.4528, 1.5104), 0.9816
"""The best two sizes for a Gaussian of variance 1, and the border between."""


def two_levels() -> Codec:
  """Returns the encoding in a sign and one of two sizes, in 2 bits.

  A value is large if it is above `BORDER` times the root mean square of its
  block. The scale of the two `LEVELS` minimizes the squared error. So the error
  is always less than the block; for Gaussian values, the squared error is 0.12
  of the block's.

  References:
    Max, `Quantizing for Minimum Distortion`, IRE Trans. Inf. Theory 1960.
  """

  def values(codes):  # -2, -1, 0, 1: large and small negative, small and large.
    size = jnp.where((codes < -1) | (codes > 0), LEVELS[1], LEVELS[0])
    return jnp.where(codes < 0, -size, size)

  def quantize(blocks):
    # Divided by the largest value, so that no square exceeds float32.
    largest = jnp.max(jnp.abs(blocks), axis=-1, keepdims=True)
    unit = blocks / jnp.where(largest > 0, largest, 1)
    rms = jnp.sqrt(jnp.mean(unit**2, axis=-1, keepdims=True))
    large = (jnp.abs(unit) > BORDER * rms).astype(jnp.float32)
    codes = jnp.where(unit < 0, -1 - large, large)
    sizes = values(codes)
    along = jnp.sum(unit * sizes, axis=-1, keepdims=True)
    return codes, largest * (along / jnp.sum(sizes**2, axis=-1, keepdims=True))

  return _packed(2, quantize, values)


def _packed(
  bits: int,
  quantize: Callable[[Array], tuple[Array, Array]],
  values: Callable[[Array], Array],
) -> Codec:
  """Returns the encoding of blocks in codes of some bits, and a scale each.

  Codes are packed into bytes; the bytes of the scales follow.

  Args:
    bits: the number of bits in a code.
    quantize: `quantize(blocks) -> (codes, scale)`, for blocks [..., BLOCK]. The
      codes are whole numbers from -2 ** (bits - 1) to 2 ** (bits - 1) - 1.
    values: `values(codes)`, the decoded values with a scale of 1.
  """
  per_byte = 8 // bits
  places = range(0, 8, bits)  # The lowest bit of each code in a byte.

  def encode(x):
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    codes, scale = quantize(blocks)
    # XLA's maximum on a CPU may lose a NaN.
    finite = jnp.all(jnp.isfinite(blocks), axis=-1, keepdims=True)
    scale = jnp.where(finite, scale, jnp.nan)
    codes = codes.astype(jnp.int8).reshape(*x.shape[:-1], -1, per_byte)
    low = lax.bitcast_convert_type(jnp.uint8(2**bits - 1), jnp.int8)
    packed = functools.reduce(
      jnp.bitwise_or,
      [(codes[..., i] & low) << place for i, place in enumerate(places)],
    )
    parts = packed, lax.bitcast_convert_type(scale, jnp.int8)
    return jnp.concatenate([p.reshape(*x.shape[:-1], -1) for p in parts], -1)

  def decode(message):
    blocks = message.shape[-1] // (BLOCK // per_byte + 4)
    packed, scale = jnp.split(message, [blocks * BLOCK // per_byte], axis=-1)
    scale = scale.reshape(*message.shape[:-1], blocks, 4)
    scale = lax.bitcast_convert_type(scale, jnp.float32)
    # Shifting to the highest bits and back repeats the sign.
    codes = [packed << 8 - bits - place >> 8 - bits for place in places]
    codes = jnp.stack(codes, axis=-1).astype(jnp.float32)
    blocks = values(codes.reshape(*scale.shape, BLOCK)) * scale[..., None]
    return blocks.reshape(*message.shape[:-1], -1)

  return Codec(encode, decode)


def _encode_bfloat16(x):
  # Send integers, because XLA on a CPU would turn bfloat16 into float32.
  return lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)


def _decode_bfloat16(message):
  return lax.bitcast_convert_type(message, jnp.bfloat16).astype(jnp.float32)


INT8 = integers(8)
BFLOAT16 = Codec(_encode_bfloat16, _decode_bfloat16)


class WireState(NamedTuple):
  """State of a compressed wire.

  `reference` is `flat.parts` of the last mean that traveled, equal on all
  workers; `error` is this worker's unsent rest, in the same shapes.
  """

  reference: list[Float32[Array, '...']]
  error: list[Float32[Array, '...']]


@part
def int8(*, axis_name: str = AXIS) -> Wire:
  """Sends changes in int8, with a float32 scale for each 256 elements."""
  return _compressed(INT8, axis_name, coarse=True)


@part
def int4(*, axis_name: str = AXIS) -> Wire:
  """Sends changes in 4 bits, as integers from -7 to 7, with `int8`'s scales."""
  return _compressed(integers(4), axis_name, coarse=True)


@part
def int2(*, axis_name: str = AXIS) -> Wire:
  """Sends changes in 2 bits: a sign, one of two sizes, and `int8`'s scales."""
  return _compressed(two_levels(), axis_name, coarse=True)


@part
def bfloat16(*, axis_name: str = AXIS) -> Wire:
  """Sends changes in bfloat16."""
  return _compressed(BFLOAT16, axis_name)


def _compressed(codec: Codec, axis_name: str, coarse: bool = False) -> Wire:
  """Returns a wire that sends the changes since the last consensus."""

  def encode(change, error):
    workers = lax.axis_size(axis_name)
    return encoded(change + error, codec, workers)

  def travel(code, count):
    return exchanged(code, codec, count=count, axis_name=axis_name)

  return sends_changes(encode, travel, axis_name, coarse=coarse)


def sends_changes(
  encode: Callable[[Any, Any], tuple[Any, Any]],
  travel: Callable[..., tuple[Any, Any]],
  axis_name: str,
  coarse: bool,
) -> Wire:
  """Returns a wire of the changes since the last consensus, with feedback.

  Args:
    encode: `encode(change, error) -> (code, error)`, for vectors [size]: the
      message and the rest it leaves out.
    travel: `travel(code, count) -> (change, left)`: the mean change, and this
      worker's rest of the mean, or `None`; both may end with padding zeros.
    axis_name: the mapped axis.
    coarse: see `Wire`.
  """

  def init(tree):
    return WireState(flat.parts(tree), flat.zeros(tree))

  def mean(tree, state, where=None, count=None):
    values, rebuild = flat.float32(tree)
    reference, keep = flat.float32(state.reference)
    error, _ = flat.float32(state.error)
    code, left = encode(values - reference, error)
    left = jnp.where(jnp.isfinite(left), left, 0)
    # A mean of nonnegative values must not be below 0, see `_floor`.
    negative = jnp.stack([jnp.any(leaf < 0) for leaf in flat.floats(tree)])
    if where is not None:
      # Zero bits decode to zero changes.
      code = jax.tree.map(
        lambda x: jnp.where(where, x, jnp.zeros_like(x)), code
      )
      negative, left = where & negative, jnp.where(where, left, error)
    negative = lax.psum(negative.astype(jnp.int32), axis_name) > 0
    change, own = travel(code, count)
    values = reference + change[: values.size]
    if own is not None:
      left += own[: values.size]
    tree = _floor(rebuild(values), negative)
    # All workers forget a nonfinite mean; otherwise it would be sent forever.
    finite = jnp.isfinite(values)
    reference = keep(jnp.where(finite, values, reference))
    error = keep(jnp.where(finite, left, 0))
    return tree, WireState(reference, error)

  def rebase(tree, state):
    return state._replace(reference=flat.parts(tree))

  resize = resizing.fields(reference=resizing.first, error=resizing.mean)
  return Wire(init, mean, rebase=rebase, coarse=coarse, resize=resize)


def encoded(
  values: Float32[Array, ' size'], codec: Codec, workers: int
) -> tuple[Array, Float32[Array, ' size']]:
  """Encodes a vector, one share per worker; returns the code and its error."""
  size = values.size
  share = -(-size // (workers * BLOCK)) * BLOCK  # Whole blocks.
  shares = jnp.pad(values, (0, workers * share - size)).reshape(workers, share)
  code = codec.encode(shares)
  return code, (shares - codec.decode(code)).reshape(-1)[:size]


def exchanged(
  code: Array,
  codec: Codec,
  *,
  count: int | None = None,
  axis_name: str = AXIS,
) -> tuple[Float32[Array, ' padded'], Float32[Array, ' padded']]:
  """Forms the mean of the workers' `encoded` vectors, in two collectives.

  Returns the mean, with the same bits on all workers, and this worker's
  rounding error of the mean. With a `count`, only that many workers count, and
  the codes of the others are zeros.
  """
  workers = lax.axis_size(axis_name)
  members = workers if count is None else count
  received = worker_mesh.in_parts(
    lambda part: lax.all_to_all(part, axis_name, 0, 0, tiled=True), code
  )
  mine = jnp.sum(codec.decode(received), axis=0) / members
  code = codec.encode(mine)
  # An error of the mean weighs `members` times as much in one worker's vector.
  own = jnp.arange(workers)[:, None] == lax.axis_index(axis_name)
  left = jnp.where(own, members * (mine - codec.decode(code)), 0)
  gathered = worker_mesh.all_gather(code, axis_name)
  return codec.decode(gathered).reshape(-1), left.reshape(-1)


def _floor(mean: Any, negative: Bool[Array, ' leaves']) -> Any:
  """Clips the mean at 0 in leaves without a negative value on any worker.

  Rounding could make an average of variances or second moments negative, and
  their square root NaN. The reference is not clipped, so the next average
  compensates for the clipping.
  """
  flags = iter(negative)

  def at_least_zero(leaf):
    if not flat.is_float(leaf):
      return leaf
    return jnp.where(~next(flags) & (leaf < 0), 0, leaf)

  return jax.tree.map(at_least_zero, mean)
