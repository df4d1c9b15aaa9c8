"""The ranges of fields that several models have."""

from typing import Annotated, Literal

from annotated_types import Interval

DType = Literal['float32', 'bfloat16']
Attention = Literal['auto', 'xla', 'cudnn']
Width = Annotated[int, Interval(ge=1, le=2**16)]
MlpDim = Annotated[int, Interval(ge=1, le=2**20)]
Size = Annotated[int, Interval(ge=1, le=2**10)]
"""Numbers of layers and heads, and sides of feature maps."""
