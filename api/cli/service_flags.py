"""The options that name a moeplan service, and its token."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from api.cli.output import print_notices
from placement.errors import BadOption

if TYPE_CHECKING:
    from api.client.connection import ServiceConnection

# The client loads httpx, so it is imported when a service is asked.

LONGEST_TOKEN_FILE = 4096

ServiceUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        envvar="MOEPLAN_URL",
        help="Let the moeplan service at this URL do it; INPUT may then also be the id of something stored there.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", envvar="MOEPLAN_TOKEN_FILE", help="File with a key of the service.", show_default=False
    ),
]
Token = Annotated[
    str | None,
    typer.Option(
        "--token",
        envvar="MOEPLAN_TOKEN",
        help="The key itself; better in MOEPLAN_TOKEN or a file, since others on this machine see commands.",
        show_default=False,
        show_envvar=True,
    ),
]
ForEngine = Annotated[
    str | None,
    typer.Option(
        "--for-engine",
        help="With --url: name, id or URL of the engine that it is for; its running layout is compared with.",
        show_default=False,
    ),
]
OfEngine = Annotated[
    str | None, typer.Option("--engine", help="Only of the engine with this name, id or URL.", show_default=False)
]


@dataclass(frozen=True, kw_only=True)
class ServiceFlags:
    """Which service is asked, if any. Neither ``repr`` nor any message contains the token."""

    url: ServiceUrl = None
    token_file: TokenFile = None
    token: Token = None

    def __repr__(self) -> str:
        return f"ServiceFlags(url={self.url!r})"

    def connection(self) -> ServiceConnection | None:
        """Return a connection to the service, None where none is named: then the work is done here.

        Raises
        ------
        BadSetting
            URL or token is unusable.
        """
        if self.url is None:
            return None
        from api.client.connection import ServiceConnection

        connection = ServiceConnection(self.url, self._secret())
        print_notices([notice.to_dict() for notice in connection.notices])
        return connection

    def required(self) -> ServiceConnection:
        """Return a connection, for what only a service can do. Raises :class:`BadOption` where none is named."""
        connection = self.connection()
        if connection is None:
            raise BadOption("this is kept by a service: name it with --url or MOEPLAN_URL, like http://127.0.0.1:8430.")
        return connection

    def _secret(self) -> str | None:
        if self.token_file is None:
            return self.token
        from api.errors import BadSetting

        try:
            with self.token_file.open("rb") as file:
                content = file.read(LONGEST_TOKEN_FILE + 1)
            secret = content.decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(f"{self.token_file} cannot be read as a token: {type(error).__name__}.") from None
        if not secret or len(content) > LONGEST_TOKEN_FILE:
            raise BadSetting(f"{self.token_file} holds no token of at most {LONGEST_TOKEN_FILE} bytes.")
        return secret
