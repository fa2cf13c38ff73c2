"""Columns that Django has none for."""

import json
from typing import TYPE_CHECKING, Any

from django.db import models

if TYPE_CHECKING:
    _TextField = models.TextField[Any, Any]
else:
    _TextField = models.TextField


class NamesField(_TextField):
    """Resource names as a JSON list in a text column, which takes any character on any database
    (a JSON column of PostgreSQL refuses NUL). Questions about resources are the lock manager's.
    """

    if TYPE_CHECKING:
        _pyi_private_set_type: Any
        _pyi_private_get_type: list[str]  # type: ignore[assignment]

    def from_db_value(self, value: str | None, *args: Any) -> list[str]:
        return json.loads(value) if value else []

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def get_prep_value(self, value: Any) -> Any:
        return value if isinstance(value, str) else json.dumps(list(value or ()))

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.get_prep_value(self.value_from_object(obj)))
