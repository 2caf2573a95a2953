"""What placeholder tokens stand for: content ids beside token ids.

All placeholders of a picture have one token id, so token ids alone would take one
picture for another.  Prefixes are equal only if their sequences of (token id, content
id) pairs are.  The index compares arrays of int32 keys: a token without content is its
own key, a pair has a negative number that stands for it and nothing else.  Content ids
are compared whole, never hashed or folded into a key.
"""

import dataclasses
import operator
import reprlib
from collections.abc import Callable, Iterable

import numpy as np

from hybridcache_jax._typing import TokenIds
from hybridcache_jax._whole import integer
from hybridcache_jax.identity import LONGEST_ID
from hybridcache_jax.tokens import token_array

ContentId = bytes | str | int
Span = tuple[int, int, ContentId]

# Stands for what equals nothing; never stored.
UNKNOWN = np.int32(np.iinfo(np.int32).min)

_NO_END = int(np.iinfo(np.int32).max)

# Pairs that may be remembered beyond twice those that stored prefixes name.
_SPARE = 256


@dataclasses.dataclass(frozen=True)
class Contents:
    """Content ids of one sequence.

    Attributes:
      spans: ``(start, stop, content id)``, ascending and disjoint: the tokens at
        positions ``start..stop-1`` stand for that content.
    """

    spans: tuple[Span, ...] = ()

    @classmethod
    def of(cls, spans: Iterable[Span], stop: int, start: int = 0) -> "Contents":
        """Checks and orders spans.

        Args:
          spans: in any order; numbers may be NumPy's.
          stop: they end at or before this position.
          start: they begin at or behind this one.

        Raises:
          ValueError: for what is no span of whole numbers and an id; for a span that
            is empty, outside or overlaps another; and for an id that is no bytes, str
            or int, or longer than ``identity.LONGEST_ID``.
        """
        known = [_span(span) for span in _spans(spans)]
        known.sort(key=lambda span: span[:2])
        end = start
        for first, last, _ in known:
            if not end <= first < last <= stop:
                raise ValueError(
                    f"The contents' span [{first}, {last}) is empty, overlaps another "
                    f"or lies outside of [{start}, {stop}); give disjoint spans of "
                    "token positions inside it."
                )
            end = last
        return cls(tuple(known))

    def extended(self, spans: Iterable[Span], start: int) -> "Contents":
        """These and further ones, which lie behind them and at or behind ``start``.

        Raises:
          ValueError: as :meth:`of` says.
        """
        least = max(start, self.spans[-1][1] if self.spans else 0)
        return Contents(self.spans + Contents.of(spans, _NO_END, least).spans)

    def before(self, length: int) -> "Contents":
        """What is left of them in the first ``length`` tokens."""
        if not self.spans or self.spans[-1][1] <= length:
            return self
        return Contents(
            tuple(
                (start, min(stop, length), content)
                for start, stop, content in self.spans
                if start < length
            )
        )

    def at(self, position: int) -> ContentId | None:
        """The content id of a position; None if it has none."""
        for start, stop, content in self.spans:
            if start <= position < stop:
                return content
        return None


class ContentKeys:
    """Keys of token ids and their contents, for one index.

    A pair has a key from when it is first stored until no stored prefix names it any
    more and :meth:`keep` is told so.  Asking gives no pair a key.  The index does that
    often enough that at most twice as many pairs are known as are named, and 256.
    """

    def __init__(self, placeholders: TokenIds = ()):
        """No pair has a key yet.

        Args:
          placeholders: token ids that never come without content; where they do, they
            are equal to nothing.
        """
        self._placeholders = np.unique(token_array(placeholders))
        self._keys: dict[tuple[int, str, ContentId], int] = {}
        self._contents: dict[int, ContentId] = {}
        self._free: list[int] = []
        self._limit = _SPARE

    def __len__(self) -> int:
        """Pairs that have a key."""
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Whether it is time for :meth:`keep`."""
        return len(self._keys) >= self._limit

    def content(self, key: int) -> ContentId | None:
        """The content id that a stored key stands for; None for a plain token."""
        return self._contents.get(key)

    def storable(self, ids: np.ndarray, contents: Contents) -> int:
        """How many of ``[n]`` token ids come before a placeholder without content."""
        if not len(self._placeholders):
            return len(ids)
        bare = np.isin(ids, self._placeholders)
        for start, stop, _ in contents.spans:
            bare[start:stop] = False
        return int(np.argmax(bare)) if bare.any() else len(ids)

    def asked(self, ids: np.ndarray, contents: Contents) -> np.ndarray:
        """Keys to look up.

        Args:
          ids: ``[n]`` int32 token ids.
          contents: spans; what lies past ``n`` is left out.

        Returns:
          ``[n]`` int32; ``ids`` itself where nothing has content.
        """
        return self._filled(
            ids, contents, lambda pair: self._keys.get(pair, int(UNKNOWN))
        )

    def stored(self, ids: np.ndarray, contents: Contents) -> np.ndarray:
        """Keys to store, new ones for pairs that have none.

        Args:
          ids: ``[n]`` int32 token ids that were run, no placeholder without content.
          contents: spans; what lies past ``n`` is left out.

        Returns:
          ``[n]`` int32; ``ids`` itself where nothing has content.
        """
        return self._filled(ids, contents, self._key)

    def keep(self, named: np.ndarray) -> None:
        """Forgets the pairs whose keys are not among ``named``, ``[n]`` int32."""
        alive = set(np.unique(named).tolist())
        for pair, key in list(self._keys.items()):
            if key not in alive:
                del self._keys[pair], self._contents[key]
                self._free.append(key)
        self._limit = 2 * len(self._keys) + _SPARE

    def _filled(
        self, ids: np.ndarray, contents: Contents, key_of: Callable[[tuple], int]
    ) -> np.ndarray:
        if not (contents.spans or self._keys or len(self._placeholders)):
            return ids
        bare = np.zeros(len(ids), bool)
        if len(self._placeholders):
            bare = np.isin(ids, self._placeholders)
        if self._keys:
            # No model has such a token, but a pair may have it as its key.
            bare |= ids < 0
        if not contents.spans and not bare.any():
            return ids
        keys = np.where(bare, UNKNOWN, ids)
        for start, stop, content in contents.before(len(ids)).spans:
            part = ids[start:stop]
            for token in np.unique(part):
                pair = (int(token), type(content).__name__, content)
                keys[start:stop][part == token] = key_of(pair)
        return keys

    def _key(self, pair: tuple[int, str, ContentId]) -> int:
        key = self._keys.get(pair)
        if key is None:
            key = self._free.pop() if self._free else -1 - len(self._keys)
            self._keys[pair], self._contents[key] = key, pair[2]
        return key


def _spans(spans: Iterable[Span]) -> Iterable[Span]:
    if isinstance(spans, str | bytes) or not isinstance(spans, Iterable):
        raise ValueError(
            f"Contents are spans (start, stop, content id), got {reprlib.repr(spans)}; "
            "give a list of them, () for none."
        )
    return spans


def _span(span: Span) -> Span:
    """A span with Python's numbers, if it is one."""
    try:
        first, last, content = span
    except (TypeError, ValueError):
        raise ValueError(
            "A span of contents is (start, stop, content id), got "
            f"{reprlib.repr(span)}; give the positions of its tokens and their id."
        ) from None
    return (
        integer("The start of a contents' span", first),
        integer("The stop of a contents' span", last),
        _content_id(content),
    )


def _content_id(content: object) -> ContentId:
    if isinstance(content, bytes):
        return _short(bytes(content), len(content))
    if isinstance(content, str):
        return _short(str.__str__(content), len(content))
    if not isinstance(content, bool):
        try:
            number = operator.index(content)  # type: ignore[arg-type]
        except TypeError:
            pass
        else:
            return _short(number, -(-number.bit_length() // 8))
    raise ValueError(
        f"A content id is bytes, str or int, got {type(content).__name__}; a digest of "
        "the content will do."
    )


def _short(content: ContentId, size: int) -> ContentId:
    """The id itself, which the index keeps for as long as a prefix names it."""
    if size > LONGEST_ID:
        raise ValueError(
            f"A content id has at most {LONGEST_ID} characters or bytes, got {size}; "
            "give a digest of the content."
        )
    return content
