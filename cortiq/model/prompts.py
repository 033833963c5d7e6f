"""Prompts of a model: texts, ids, conversations, and the images in them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from cortiq.model.chat import Message, chat_ids, prompt_ids
from cortiq.model.hearing import SoundPrompt
from cortiq.model.sight import ImagePrompt, chat_prompt

if TYPE_CHECKING:
    from cortiq.model.generation import Generation
    from cortiq.model.model import Model

TextPrompt = str | Iterable[int]
Prompt = TextPrompt | ImagePrompt | SoundPrompt


class PromptMixin:
    """The part of `Model` that makes ids of what it is given."""

    def ids(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a raw text, with the tokenizer's BOS; ids as they are.

        Raises
        ------
        RequestError : the text is empty, or the prompt is neither text nor ids.
        TokenizerError : it is not valid Unicode.
        """
        given = prompt.ids if isinstance(prompt, ImagePrompt | SoundPrompt) else prompt
        return prompt_ids(cast("Model", self).tokenizer, given)

    def image_prompt(self, prompt: str | Iterable[int], images: Iterable[Any]) -> ImagePrompt:
        """Return a raw text, or ids with a place for each row of an image, with its images.

        Raises
        ------
        RequestError : an image cannot be read, there are not as many places as images, or the
            model was not loaded with images=True.
        """
        model = cast("Model", self)
        return model.senses.of("image", model.name).prompt(prompt, images)

    def has_medium(self, medium: str) -> bool:
        """Return whether prompts may have images (`image`), or sounds (`audio`)."""
        return medium in cast("Model", self).senses

    def audio_prompt(self, prompt: str | Iterable[int], sounds: Iterable[Any]) -> ImagePrompt:
        """Return a raw text, or ids with a place for each row of a sound, with its sounds.

        Parameters
        ----------
        sounds : each a path, the bytes of a file, or an array with its rate, (array, 16000).

        Raises
        ------
        RequestError : a sound cannot be read, there are not as many places as sounds, or the
            model's prompts have no sounds.
        """
        model = cast("Model", self)
        return model.senses.of("audio", model.name).prompt(prompt, sounds)

    def chat_ids(
        self, messages: Sequence[Message], *, template_options: Mapping[str, Any] | None = None
    ) -> list[int]:
        """Return the token ids of a conversation, rendered by the model's chat template.

        Parameters
        ----------
        messages : mappings with `role` and `content`.
        template_options : variables the template looks at, such as `enable_thinking`.

        Raises
        ------
        TokenizerError : the model has no chat template, or the template refuses the messages.
        """
        model = cast("Model", self)
        return chat_ids(model.tokenizer, messages, template_options, model.name, model.program)

    def chat_prompt(
        self, messages: Sequence[Message], *, template_options: Mapping[str, Any] | None = None
    ) -> list[int] | ImagePrompt:
        """Return what `chat` generates from: `chat_ids`, and the images of the messages."""

        def ids_of(given: Sequence[Message], expanded: Callable[[str], str]) -> list[int]:
            known, where, program = model.tokenizer, model.name, model.program
            return chat_ids(known, given, template_options, where, program, expanded=expanded)

        model = cast("Model", self)
        return chat_prompt(model.senses, model.name, messages, ids_of)

    def chat(
        self,
        messages: Sequence[Message],
        *,
        template_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Generation:
        """Generate from a conversation; takes everything `generate` takes but images, which are
        parts of contents: `{"image": PATH, BYTES, ARRAY or an image of Pillow}`. So are sounds:
        `{"audio": PATH, BYTES or (ARRAY, RATE)}`.
        """
        prompt = self.chat_prompt(messages, template_options=template_options)
        return cast("Model", self).generate(prompt, **options)
