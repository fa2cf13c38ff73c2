"""A view that dispatches, as a site has them."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import path

from django_task_locks import dispatch
from tests.testapp import tasks
from tests.testapp.models import Book


def add_book(request: HttpRequest) -> HttpResponse:
    """With ?fail= it raises after all was done; the parameters choose how the task is run."""
    options: dict[str, Any] = {"immediate": "immediate" in request.GET, "exclusive": "r"}
    Book.objects.create(title="by the view")
    task = dispatch(tasks.write_book, ["by the task"], **options)
    if "fail" in request.GET:
        raise ValueError("after dispatching")
    return HttpResponse(task.state)


urlpatterns = [path("add", add_book)]
