"""EleutherAI's lm-evaluation-harness on cortiq: `pip install 'cortiq[lm-eval]'`.

`python -m cortiq.lm_eval run --model cortiq --model_args model=smollm2,backend=cpu --tasks ...` is
the harness's own command line with the model `cortiq` added. From Python, pass
`CortiqLM("smollm2")` wherever the harness takes an `LM`.
"""

from __future__ import annotations

import importlib
from typing import Any

from cortiq.errors import RequestError
from cortiq.model.harness_requests import EvaluationModel

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ImportError as error:
    from cortiq.plugins.extras import extra_command

    hint = extra_command("lm-eval")
    raise RequestError(f"the lm-evaluation-harness is not installed: {error}", hint=hint) from error


@register_model("cortiq")
class CortiqLM(LM):
    """A model of cortiq for the harness; scores are the same, item for item, on every backend.

    Parameters
    ----------
    model, pretrained : model for `cortiq.load`; either name works.
    batch_size : texts generated together; no score depends on it.
    device : ignored, though the harness always passes it: name backend and device together, as
        `backend=torch:cuda:0`.
    options : fields of `cortiq.LoadOptions`.
    """

    def __init__(
        self,
        model: str | None = None,
        pretrained: str | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        device: str | None = None,
        **options: Any,
    ) -> None:
        import cortiq

        super().__init__()
        name = model or pretrained
        if name is None:
            raise RequestError("needs a model", where="model_args", hint="model=smollm2")
        self.loaded = cortiq.load(name, **options)
        batch = int(str(batch_size)) if str(batch_size).isdigit() else 16
        self.evaluated = EvaluationModel(self.loaded, batch=max(batch, 1))

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> list[Any]:
        """Return (ln p, whether greedy) of each continuation after its context."""
        pairs = [request.args for request in requests]
        with _bar(len(pairs), "loglikelihood", disable_tqdm) as bar:
            found = self.evaluated.likelihoods(pairs, bar.update)
        answers = [(one.logprob, one.greedy) for one in found]
        self._keep("loglikelihood", requests, answers)
        return answers

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return ln p of each text, every token given as much context as fits."""
        answers = []
        with _bar(len(requests), "loglikelihood_rolling", disable_tqdm) as bar:
            for request in requests:
                answers.append(self.evaluated.rolling(request.args[0]))
                bar.update(1)
        self._keep("loglikelihood_rolling", requests, answers)
        return answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the text generated for each context."""
        given = [request.args for request in requests]
        with _bar(len(given), "generate_until", disable_tqdm) as bar:
            answers = self.evaluated.texts(given, bar.update)
        self._keep("generate_until", requests, answers)
        return answers

    def _keep(self, kind: str, requests: list[Any], answers: list[Any]) -> None:
        """Store results in the harness's cache."""
        for request, answer in zip(requests, answers, strict=True):
            self.cache_hook.add_partial(kind, request.args, answer)

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation with the model's chat template."""
        from cortiq.tokenizer.template import render

        self.evaluated.templated, tokenizer = True, self.loaded.tokenizer
        self.loaded.chat_ids(chat_history)  # raises errors of template or messages
        return render(
            tokenizer.chat_template() or "", chat_history, bos_token=tokenizer.bos_token,
            eos_token=tokenizer.eos_token, add_generation_prompt=add_generation_prompt,
        )  # fmt: skip

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the model's template, for the harness's report."""
        return self.loaded.tokenizer.chat_template() or ""

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's identity for the harness: the hash of the model's files."""
        return self.loaded.model_hash

    def get_model_info(self) -> dict[str, Any]:
        """Return what determines the bits, for the harness's report: the same on every backend."""
        from cortiq.numerics.contract import CONTRACT_VERSION

        return {"model_hash": self.loaded.model_hash, "fingerprint": self.loaded.fingerprint,
                "contract": CONTRACT_VERSION}  # fmt: skip


def _bar(total: int, what: str, silent: bool) -> Any:
    return importlib.import_module("tqdm").tqdm(total=total, desc=what, disable=silent or None)


def main() -> None:
    """Run the harness's command line with this model registered."""
    importlib.import_module("lm_eval.__main__").cli_evaluate()


if __name__ == "__main__":
    main()
