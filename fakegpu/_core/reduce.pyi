from collections.abc import Sequence

from typing_extensions import Buffer

def reduce(
    dtype: int, redop: int, inputs: Sequence[Buffer], outputs: Sequence[Buffer], scalars: Sequence[int] | None = None
) -> None: ...
