"""Reading a published ``config.json``: typed fields, defaults, complaints."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

from hybridcache_jax.errors import CheckpointError
from hybridcache_jax.layers import LayerSpec

_INT32_MAX = 2**31 - 1
_MAX_LAYERS = 1024
_MISSING = object()
_OUTSIDE = ("bos_token_id", "eos_token_id", "tie_word_embeddings")


class Fields:
    """The fields of one config, read with their types checked.

    A published config leaves out what equals the class defaults of its model; the
    caller gives those defaults.  ``null`` counts as left out.

    Args:
      content: the parsed JSON object, or a part of it.
      model_type: for messages.
    """

    def __init__(self, content: Mapping[str, Any], model_type: str):
        self.content = content
        self.model_type = model_type

    def integer(self, name: str, default: int | object = _MISSING) -> int:
        """A non-negative int32."""
        value = self._get(name, default)
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 0 <= value <= _INT32_MAX:
            raise self.error(name, value, "an integer from 0 to 2**31 - 1")
        return value

    def positive(self, name: str, default: int | object = _MISSING) -> int:
        """An int32 of at least 1."""
        value = self.integer(name, default)
        if value < 1:
            raise self.error(name, value, "an integer of at least 1")
        return value

    def number(self, name: str, default: float | object = _MISSING) -> float:
        """A finite number."""
        value = self._get(name, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not math.isfinite(value):
            raise self.error(name, value, "a finite number")
        return float(value)

    def positive_number(self, name: str, default: float | object = _MISSING) -> float:
        """A finite number above 0."""
        value = self.number(name, default)
        if value <= 0:
            raise self.error(name, value, "a number above 0")
        return value

    def cap(self, name: str) -> float | None:
        """A soft cap, or None where there is none."""
        return self.positive_number(name) if self.has(name) else None

    def flag(self, name: str, default: bool | object = _MISSING) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, name: str, default: str | object = _MISSING) -> str:
        """A string."""
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        return value

    def sequence(self, name: str, default: Sequence | object = _MISSING) -> tuple:
        """A list."""
        value = self._get(name, default)
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise self.error(name, value, "a list")
        return tuple(value)

    def part(self, name: str) -> "Fields":
        """A nested object; empty if it is left out."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, value, "an object")
        return Fields(value, self.model_type)

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.content.get(name) is not None

    def only(self, name: str, supported: Any, default: Any) -> None:
        """Refuses any value but the one that is supported."""
        value = self._get(name, default)
        if value != supported:
            raise self.error(name, value, f"{supported!r}, the only one supported")

    def ids(self, name: str) -> tuple[int, ...]:
        """Token ids given as none, one or several."""
        value = self.content.get(name)
        if value is None:
            return ()
        values = value if isinstance(value, Sequence) else (value,)
        for item in values:
            whole = isinstance(item, int) and not isinstance(item, bool)
            if not whole or not 0 <= item <= _INT32_MAX:
                raise self.error(name, value, "token ids from 0 to 2**31 - 1")
        return tuple(dict.fromkeys(values))

    def layer_count(self) -> int:
        """``num_hidden_layers``, no more than any model has."""
        count = self.positive("num_hidden_layers")
        if count > _MAX_LAYERS:
            # A damaged count must not become a list of billions.
            raise self.error("num_hidden_layers", count, f"at most {_MAX_LAYERS}")
        return count

    def layer_types(
        self,
        count: int,
        default: Sequence[str] | None,
        allowed: Sequence[str],
        name: str = "layer_types",
    ) -> tuple[str, ...]:
        """One kind per layer.

        Args:
          count: number of layers.
          default: the model's own schedule, or None if the config must have one.
          allowed: kinds that the model knows.
          name: the field.
        """
        kinds = self.sequence(name, default or _MISSING)
        if len(kinds) != count:
            raise self.error(name, kinds, f"one kind for each of {count}")
        unknown = sorted({str(kind) for kind in kinds} - set(allowed))
        if unknown:
            raise self.error(name, unknown, f"only {', '.join(allowed)}")
        return kinds

    def error(self, name: str, value: Any, expected: str) -> CheckpointError:
        """The complaint about a field."""
        shown = repr(value)
        shown = shown if len(shown) < 200 else shown[:200] + "..."
        return CheckpointError(
            f"The config of this {self.model_type} model has {name} = {shown}, "
            f"expected {expected}. Mend the config, or fetch it anew."
        )

    def _get(self, name: str, default: Any) -> Any:
        value = self.content.get(name)
        if value is not None:
            return value
        if default is _MISSING:
            raise CheckpointError(
                f"The config of this {self.model_type} model lacks {name!r}. Complete "
                "it, or fetch it anew."
            )
        return default


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """What every decoder model has; families add their own fields.

    Attributes:
      vocab_size: rows of the embedding.
      hidden_size: width of the residual stream.
      num_layers: number of decoder layers.
      num_heads: query heads.
      rms_norm_eps: epsilon of the norms.
      tie_word_embeddings: whether the head is the embedding.
      max_position_embeddings: longest context the model was trained for.
      bos_token_id: id in front of every text, or None.
      eos_token_ids: ids that end a text.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    max_position_embeddings: int
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> Self:
        """Reads the content of a ``config.json``, in either published spelling.

        Raises:
          CheckpointError: if a setting is missing, damaged or not supported.
        """
        raise NotImplementedError

    def layers(self, cache_format: str = "bfloat16") -> tuple[LayerSpec, ...]:
        """What each layer keeps in the cache.

        Args:
          cache_format: a dtype for all entries, or a quantised format by name where
            the family has one.
        """
        raise NotImplementedError

    @property
    def digest(self) -> str:
        """SHA-256 of the settings; equal for two spellings of the same model."""
        content = {"class": type(self).__name__, **dataclasses.asdict(self)}
        text = json.dumps(content, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def common_fields(
    fields: Fields, *, rms_norm_eps: float, tied: bool, max_positions: int
) -> dict[str, Any]:
    """Arguments of :class:`DecoderConfig`, with the family's defaults."""
    bos = fields.ids("bos_token_id")
    return {
        "vocab_size": fields.positive("vocab_size"),
        "hidden_size": fields.positive("hidden_size"),
        "num_layers": fields.layer_count(),
        "num_heads": fields.positive("num_attention_heads"),
        "rms_norm_eps": fields.positive_number("rms_norm_eps", rms_norm_eps),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", tied),
        "max_position_embeddings": fields.positive(
            "max_position_embeddings", max_positions
        ),
        "bos_token_id": bos[0] if bos else None,
        "eos_token_ids": fields.ids("eos_token_id"),
    }


def text_part(
    config: Mapping[str, Any], *, multimodal: str, text: str
) -> dict[str, Any]:
    """The settings of the text model, whose config may be part of a multimodal one.

    A multimodal config has them in a nested ``text_config``; ids of special tokens and
    the tie of the embeddings may stand outside of it.

    Args:
      config: the parsed JSON object.
      multimodal: ``model_type`` of the whole.
      text: ``model_type`` of the text model.

    Raises:
      CheckpointError: if it is another model.
    """
    whole = Fields(config, multimodal)
    model_type = whole.text("model_type", "")
    if model_type not in (multimodal, text):
        raise whole.error("model_type", model_type, f"{text!r} or {multimodal!r}")
    if model_type == text:
        return dict(config)
    part = whole.part("text_config")
    if not part.content:
        raise whole.error("text_config", None, "the settings of the text model")
    part.only("model_type", text, text)
    outside = {name: config[name] for name in _OUTSIDE if whole.has(name)}
    return {**part.content, **outside}
