"""The declared shapes of a step.  Nothing else is ever compiled."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Buckets:
    """Shapes ``[B, T]`` in which steps run: every batch with every chunk.

    Attributes:
      batch: rows of a step, ascending.
      chunk: tokens of each row, ascending; 1 is a decode step.
    """

    batch: tuple[int, ...] = (1, 2, 4)
    chunk: tuple[int, ...] = (1, 64, 256)

    def __post_init__(self):
        for name, sizes in (("batch", self.batch), ("chunk", self.chunk)):
            if not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
                raise ValueError(
                    f"Buckets.{name} must be ascending positive sizes, got {sizes}."
                )

    @property
    def max_batch(self) -> int:
        """Most rows of a step."""
        return self.batch[-1]

    @property
    def max_chunk(self) -> int:
        """Most tokens of a row in a step."""
        return self.chunk[-1]

    def within(self, max_length: int) -> "Buckets":
        """The same buckets without chunks longer than a whole sequence."""
        chunk = tuple(size for size in self.chunk if size <= max_length)
        return dataclasses.replace(self, chunk=chunk or (1,))

    def shapes(self) -> tuple[tuple[int, int], ...]:
        """All shapes, the ones to compile at warm-up."""
        return tuple((b, t) for t in self.chunk for b in self.batch)

    def fit(self, rows: int, tokens: int) -> tuple[int, int]:
        """The smallest declared shape that holds ``rows`` rows of ``tokens`` tokens.

        Raises:
          ValueError: if none does.
        """
        if rows > self.max_batch or tokens > self.max_chunk:
            raise ValueError(
                f"{rows} rows of {tokens} tokens exceed the largest bucket "
                f"[{self.max_batch}, {self.max_chunk}]."
            )
        batch = next(size for size in self.batch if size >= rows)
        return batch, next(size for size in self.chunk if size >= tokens)
