"""Keys over HTTP."""

from __future__ import annotations

from datetime import datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from api.http.schemas.common import Name, Strict
from api.states import Level


class KeyIn(Strict):
    """A key to make."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "grafana", "level": "read"}]})

    name: Name
    level: Level
    expires_at: AwareDatetime | None = None


class KeyOut(BaseModel):
    """A key, without the key itself."""

    model_config = ConfigDict(from_attributes=True)

    id: str = Field(examples=["key_01k3x9v4e7q8w2m5n6p7r8s9t0"])
    name: str
    level: Level
    starts_with: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None = Field(description="To the minute.")
    revoked_at: datetime | None


class NewKeyOut(KeyOut):
    """A key that was just made."""

    key: str = Field(description="The key; it is shown this once.")
