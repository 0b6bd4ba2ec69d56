"""Settings of the service: flags, then ``MOEPLAN_*`` variables, files of secrets, a TOML file, and what is usual."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from api.errors import BadSetting

GIBIBYTE = 2**30
SHORTEST_KEY = 16
"""Characters of a key given as a setting; keys that the service makes are longer."""

FILE_STORES = ("file", "s3", "gs", "az", "abfs")
"""Kinds of places that files can be stored in."""

SECRETS = ("api_key", "admin_api_key", "session_secret", "database_url")


class Settings(BaseSettings):
    """Everything that can be set; every field is also a variable, ``MOEPLAN_`` and its name in capitals.

    ``repr`` and every message hide the fields of :data:`SECRETS`.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="MOEPLAN_",
        env_parse_none_str="null",
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=True,
    )

    data_dir: Path = Field(default_factory=lambda: default_data_dir(os.environ))
    """Folder of the SQLite database and of all stored files."""

    database_url: SecretStr | None = None
    """``postgresql://user:password@host/name`` or ``sqlite:///path``; by default moeplan.db in the data folder."""

    files_url: str | None = None
    """Where recordings, plans and layouts are stored: ``s3://bucket/folder`` (``gs://``, ``az://`` with their fsspec
    clients) or ``file:///folder``; by default the data folder. Credentials come from the store's own variables."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8430
    api_key: SecretStr | None = None
    """A key of the level read, beside those in the database."""

    admin_api_key: SecretStr | None = None
    """A key of the level admin, beside those in the database."""

    session_secret: SecretStr | None = None
    """What browsers' sessions are signed with; by default a file of the data folder. Give the same to all processes of
    a service that share no folder."""

    workers: Annotated[int, Field(ge=0, le=64)] = 1
    """Worker processes that ``moeplan serve`` keeps running beside itself."""

    jobs_per_worker: Annotated[int, Field(ge=1, le=64)] = 2
    plan_workers: Annotated[int, Field(ge=1, le=64)] | Literal["ray"] = 1
    """Processes that search a plan, or ray for the machines of a Ray cluster (``RAY_ADDRESS``); plans are the same."""

    engine_timeout_s: Annotated[float, Field(gt=0, le=600)] | None = None
    """For a request to an engine, whatever it asks; None waits longer for what takes an engine longer."""

    max_upload_bytes: Annotated[int, Field(ge=1)] = 2 * GIBIBYTE
    """Of all files of one recording together."""

    max_upload_files: Annotated[int, Field(ge=1, le=10_000)] = 512
    max_body_bytes: Annotated[int, Field(ge=1024)] = 2**20
    """Of a request that is no upload."""

    trace_retention_days: Annotated[float, Field(gt=0)] | None = 30.0
    """Recordings are removed so long after they were made, unless they are kept; None keeps all."""

    event_retention_days: Annotated[float, Field(gt=0)] = 30.0
    """What happened step by step to a job is forgotten so long after it ended; the job and its end stay."""

    audit_retention_days: Annotated[float, Field(gt=0)] | None = 730.0
    """Of the audit log; None keeps all."""

    decision_retention_days: Annotated[float, Field(gt=0)] | None = 730.0
    """Decisions are forgotten so long after they were made, with their cycles, jobs, plans that nobody wanted and
    expired recordings; the last one of every schedule and whatever was pushed stay. None keeps all."""

    answer_retention_hours: Annotated[float, Field(gt=0)] = 24.0
    """How long a request may be repeated under its idempotency key."""

    log_level: Annotated[str, Field(pattern="^(debug|info|warning|error)$")] = "info"
    metrics_per_expert: bool = False
    """Adds a series for every expert of every layer: tens of thousands for large models."""

    def as_variables(self) -> dict[str, str]:
        """Return the settings as variables of a process that is to have the same, secrets included."""
        variables = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, SecretStr):
                value = value.get_secret_value()
            if value is not None:
                variables[f"MOEPLAN_{name.upper()}"] = str(value)
        for name in ("trace_retention_days", "audit_retention_days", "decision_retention_days"):
            if getattr(self, name) is None:
                variables[f"MOEPLAN_{name.upper()}"] = "null"
        return variables

    @field_validator("api_key", "admin_api_key", "session_secret")
    @classmethod
    def _long_enough(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and (len(key.get_secret_value()) < SHORTEST_KEY or not _plain(key.get_secret_value())):
            raise ValueError(f"a key has at least {SHORTEST_KEY} printable characters without spaces")
        return key

    @field_validator("database_url")
    @classmethod
    def _known_database(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None:
            _parsed(url.get_secret_value())
        return url

    @field_validator("files_url")
    @classmethod
    def _known_store(cls, url: str | None) -> str | None:
        if url is None:
            return None
        scheme, mark, place = url.partition("://")
        if not mark or scheme not in FILE_STORES or not place.strip("/"):
            raise ValueError(f"it is like s3://bucket/folder; there are {', '.join(FILE_STORES)}")
        if "@" in place or "?" in place:
            raise ValueError("it holds no credentials; they come from the store's own variables")
        if scheme == "file" and not place.startswith("/"):
            raise ValueError("a folder is named from the root, like file:///srv/moeplan")
        return url

    @property
    def database(self) -> URL:
        """The database to connect to, with its password."""
        if self.database_url is None:
            return URL.create("sqlite", database=str(self.data_dir / "moeplan.db"))
        return _parsed(self.database_url.get_secret_value())

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, file_secret_settings


def read_settings(config: Path | None = None, **flags: Any) -> Settings:
    """Read the settings; flags that are None count as not given.

    Parameters
    ----------
    config
        TOML file, by default that of ``MOEPLAN_CONFIG``, else none. In the folder that ``MOEPLAN_SECRETS_DIR`` names, a
        file called as a variable, in small letters, holds its value: so containers, Kubernetes and systemd hand secrets
        over.
    **flags
        Fields of :class:`Settings`.

    Raises
    ------
    BadSetting
        Naming the setting and where it may come from; never its value.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    chosen = config or (Path(os.environ["MOEPLAN_CONFIG"]) if os.environ.get("MOEPLAN_CONFIG") else None)
    kind = Settings if chosen is None else _with_file(chosen)
    secrets_dir = _secrets_dir()
    sources: dict[str, Any] = {**given, "_secrets_dir": secrets_dir}
    try:
        return kind(**sources)
    except tomllib.TOMLDecodeError as error:
        raise BadSetting(f"{chosen} is not TOML: {error}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{chosen} cannot be read: {error}.") from None
    except SettingsError as error:  # of a file of secrets
        raise BadSetting(_secret_unreadable(secrets_dir, error.__cause__)) from None
    except ValidationError as error:
        raise BadSetting(_sentence(error)) from None


def default_data_dir(environment: Mapping[str, str]) -> Path:
    """Return ``$XDG_STATE_HOME/moeplan``, by default ``~/.local/state/moeplan``."""
    state = environment.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "moeplan"


def _secrets_dir() -> Path | None:
    named = os.environ.get("MOEPLAN_SECRETS_DIR")
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise BadSetting(f"{folder}, the folder of secrets that MOEPLAN_SECRETS_DIR names, does not exist.")
    return folder


def _secret_unreadable(folder: Path | None, cause: BaseException | None) -> str:
    if isinstance(cause, OSError) and cause.strerror:
        return f"{cause.filename}, a file of secrets, cannot be read: {cause.strerror}."
    return f"a file in {folder}, the folder of secrets, is not UTF-8 text."


def _with_file(path: Path) -> type[Settings]:
    if not path.is_file():
        raise BadSetting(f"{path}, the file of settings, does not exist.")

    class FromFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: PydanticBaseSettingsSource, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            first = Settings.settings_customise_sources(settings_cls, *sources, **named)
            return *first, TomlConfigSettingsSource(settings_cls, toml_file=path)

    return FromFile


def _parsed(text: str) -> URL:
    """Parse a database URL; PostgreSQL always means psycopg 3."""
    try:
        url = make_url(text)
    except ArgumentError:
        raise ValueError("it is no database URL; like postgresql://user@host/name or sqlite:///moeplan.db") from None
    backend = url.get_backend_name()
    if backend in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    if backend != "sqlite":
        raise ValueError(f"{backend} is not supported; give a postgresql:// or sqlite:/// URL")
    if url.database in (None, "", ":memory:"):
        raise ValueError("a SQLite database is a file that several processes open: sqlite:///path")
    return url


def _plain(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "settings"
    message = first["msg"].removeprefix("Value error, ")
    message = "there is no such setting" if first["type"] == "extra_forbidden" else message
    return f"the setting {name} (or MOEPLAN_{name.upper()}): {message[:1].lower()}{message[1:].rstrip('.')}."
