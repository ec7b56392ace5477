"""Django's templates, with the context freed as soon as a page is rendered.

Named by the settings. Django's context references itself, and with it every row of the page: it would stay until the
next full garbage collection, which is once an hour (`gpuplane.start.gc_tuning`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from django.http import HttpRequest
from django.template import TemplateDoesNotExist
from django.template.backends.django import DjangoTemplates, Template, copy_exception
from django.template.context import Context, make_context
from typing_extensions import override

if TYPE_CHECKING:
    from django.utils.safestring import SafeString


class Templates(DjangoTemplates):
    """The template backend."""

    @override
    def from_string(self, template_code: str) -> Template:
        return _Freeing(super().from_string(template_code), self)

    @override
    def get_template(self, template_name: str) -> Template:
        return _Freeing(super().get_template(template_name), self)


class _Freeing(Template):
    """A template whose context is emptied after use. Copies of it, as tests keep, are not."""

    def __init__(self, template: Template, backend: Templates) -> None:
        super().__init__(template.template, backend)

    @override
    def render(self, context: Context | dict[str, Any] | None = None, request: HttpRequest | None = None) -> SafeString:
        own = make_context(cast("dict[str, Any] | None", context), request, autoescape=self.backend.engine.autoescape)
        try:
            return self.template.render(own)
        except TemplateDoesNotExist as error:
            raise copy_exception(error, self.backend) from error
        finally:
            own.dicts.clear()
            own.render_context.dicts.clear()
