"""What an engine says of itself."""

import dataclasses

import jax
from small_model import CONFIG, PLAN, random_model

from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.serving.build import model_identity


def test_who_computes_other_bits_is_another_producer():
    loaded = LoadedModel(
        model=random_model(0),
        config=CONFIG,
        layers=CONFIG.layers("float32"),
        weights_digest="w",
        config_digest="c",
        tokenizer_digest=None,
        tokenizer=None,
        source="",
        param_dtype="float32",
    )
    mine = model_identity(loaded, PLAN)
    assert mine == model_identity(loaded, dataclasses.replace(PLAN, stored_tokens=80))
    assert mine.numerics == "params=float32,matmul=highest,backend=cpu,reads=xla"
    others = [{"kernels": "interpret"}, {"backend": "gpu"}, {"backend": "tpu"}]
    found = [model_identity(loaded, dataclasses.replace(PLAN, **o)) for o in others]
    with jax.default_matmul_precision("default"):
        found.append(model_identity(loaded, PLAN))
    assert len({mine, *found}) == 5
    # By that alone.
    same = [dataclasses.replace(each, numerics=mine.numerics) for each in found]
    assert set(same) == {mine}
