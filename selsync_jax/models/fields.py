"""The ranges of common model fields, and the shapes of arrays."""

from typing import Annotated, Literal

from annotated_types import Interval
from jaxtyping import Array, Float, Int

DType = Literal['float32', 'bfloat16']
Attention = Literal['auto', 'xla']
Width = Annotated[int, Interval(ge=1, le=2**16)]
MlpDim = Annotated[int, Interval(ge=1, le=2**20)]
Size = Annotated[int, Interval(ge=1, le=2**10)]
"""Numbers of layers and heads, and sides of feature maps."""

Images = Float[Array, 'batch height width channels']
Scores = Float[Array, 'batch classes']
Tokens = Int[Array, 'batch time']
TokenScores = Float[Array, 'batch time vocab']
