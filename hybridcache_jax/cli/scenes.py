"""The scenes of the demo: what is asked, in which state, and what must come out.

Each scene serves prompts with reuse and compares every answer with a cold run of
the same prompt on the same weights.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
from flax import nnx

from hybridcache_jax.forms import Form
from hybridcache_jax.models.load import LoadedModel
from hybridcache_jax.serving.engine import Engine, OnProgress
from hybridcache_jax.serving.request import Request, Result

QUESTIONS = (
    "In one sentence, the text above is about",
    "The most important person in the text above is",
    "The first date mentioned in the text above is",
    "A good title for the text above would be",
)

# Called when a run of one or more prompts starts; gives the engine's listener.
OnRun = Callable[[str, int], OnProgress]


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One answer beside its cold run.

    Attributes:
      scene: title of the scene.
      question: what was asked after the document.
      result: with reuse.
      cold: without.
    """

    scene: str
    question: str
    result: Result
    cold: Result

    @property
    def equal(self) -> bool:
        """Whether the tokens are those of the cold run."""
        return self.result.tokens == self.cold.tokens


@dataclasses.dataclass
class Demo:
    """State of a running demo.

    Attributes:
      engine: serves everything.
      loaded: the model.
      prompts: question to the tokens of document and question.
      max_new_tokens: tokens per answer.
      on_run: told about each run.
    """

    engine: Engine
    loaded: LoadedModel
    prompts: dict[str, np.ndarray]
    max_new_tokens: int
    on_run: OnRun
    _cold: dict[str, Result] = dataclasses.field(default_factory=dict)

    def scenes(self):
        """Yields ``(title, remark, outcomes)`` one scene after the other."""
        first, second, third, fourth = self.prompts
        yield self._scene("cold", "nothing is stored yet", first)
        yield self._scene("warm", "another question on the same document", second)
        yield self._scene(
            "two at once",
            "two more questions, in one batch, on one prefix",
            third,
            fourth,
        )
        yield self._scene(
            "again, exactly",
            "a prompt already answered; one position at least is run",
            first,
        )
        for form in (Form.SWA_WINDOW, Form.UNCOMPRESSED_TAIL):
            self.engine.cache = self.engine.prefixes.evict(self.engine.cache, form)
        yield self._scene(
            "windows evicted",
            "the history is still stored, windows and tails are gone",
            second,
        )
        self._change_weights()
        yield self._scene(
            "producer changed",
            "one norm of the model was scaled; what the old weights wrote is useless",
            second,
        )

    def _scene(self, title: str, remark: str, *questions: str):
        for question in questions:
            if question not in self._cold:
                (cold,) = self._run(f"{title}: cold run", [question], reuse=False)
                self._cold[question] = cold
        results = self._run(title, questions, reuse=True)
        outcomes = [
            Outcome(title, question, result, self._cold[question])
            for question, result in zip(questions, results, strict=True)
        ]
        return title, remark, outcomes

    def _run(self, label: str, questions, *, reuse: bool) -> list[Result]:
        requests = [
            Request(
                self.prompts[question],
                max_new_tokens=self.max_new_tokens,
                reuse=reuse,
            )
            for question in questions
        ]
        total = sum(len(request.tokens) + self.max_new_tokens for request in requests)
        return self.engine.run(requests, self.on_run(label, total))

    def _change_weights(self) -> None:
        """Scales the final norm a little: new weights, and so a new identity."""
        graph, state = nnx.split(self.loaded.model)
        changed: Any = nnx.merge(graph, state)
        weight = changed.norm.weight
        weight[...] = weight[...] * 1.05
        digest = hashlib.sha256(np.asarray(weight[...]).tobytes())
        digest.update(self.loaded.weights_digest.encode())
        self.engine.update_model(
            self.engine.compiled_step.with_model(changed),
            dataclasses.replace(self.engine.identity, weights=digest.hexdigest()),
        )
        self._cold.clear()
