"""What can go wrong in what surrounds planning.

::

    CodedError                                see placement.errors
     +-- ApiError                             everything below comes from this package
          +-- RayMissing                      --workers ray without Ray
          +-- RayUnreachable                  no Ray cluster answers
          +-- BadSetting                      a setting, or the file of settings, is unusable
          +-- StateError                      what the service keeps
          |    +-- DatabaseUnreachable, DatabaseOutdated, DatabaseTooNew
          |    +-- BadRevision                the schema cannot go back to it
          |    +-- StoredFileLost             a stored file is gone or changed
          |    +-- FilesUnreachable           the object store does not answer
          +-- RequestError                    a request to the service cannot be done as it is
          |    +-- BadRequest, BadPath, BadCursor, BadIdempotencyKey, BadSecretReference, BadSchedule, TooLarge
          |    +-- KeyMissing, KeyRefused, AdminNeeded, SessionOver, CsrfTokenWrong
          |    +-- NotFound
          |    +-- NameTaken, WrongState, IdempotencyKeyReused, ApprovalNeeded, EngineInUse
          |    +-- VersionChanged, VersionNeeded
          +-- SecretMissing                   an engine's key is not where its reference says
          +-- EngineResting                   an engine failed so often that it is left alone for a while
          +-- EngineCallsFull                 as many requests wait for engines as may at a time
          +-- JobStopped                      a job was cancelled, or its process ended
          +-- ClientError                     a moeplan service that the command line asks (--url)
               +-- ServiceUnreachable, ServiceAnswerInvalid
               +-- ServiceRefused             it said no, with a code that is none of this moeplan's

``code`` is the class name in capitals, as everywhere. Only :mod:`api.http` knows status codes.
"""

from __future__ import annotations

from placement.errors import CodedError


class ApiError(CodedError):
    """Something around planning failed."""


class RayMissing(ApiError):
    """Ray is not installed; the extra moeplan[ray] brings it."""


class RayUnreachable(ApiError):
    """No Ray cluster answers."""


class BadSetting(ApiError):
    """A setting cannot be used."""


class StateError(ApiError):
    """What the service keeps cannot be used."""


class DatabaseUnreachable(StateError):
    """The database does not answer."""


class DatabaseOutdated(StateError):
    """The database was made by an older moeplan; moeplan db upgrade brings it up to date."""


class DatabaseTooNew(StateError):
    """The database was made by a newer moeplan."""


class BadRevision(StateError):
    """The database's schema cannot go back to this revision."""


class StoredFileLost(StateError):
    """A file of the data folder is missing, or is not what was stored."""


class FilesUnreachable(StateError):
    """The object store does not answer."""


class RequestError(ApiError):
    """The request cannot be done."""


class BadRequest(RequestError):
    """The request is not what the description of the service asks for."""


class BadPath(RequestError):
    """A file's name is one plain name, without folders."""


class BadCursor(RequestError):
    """The cursor is none that this service gave out."""


class BadIdempotencyKey(RequestError):
    """An idempotency key is 1 to 200 printable characters."""


class BadSecretReference(RequestError):
    """A secret is named by env:NAME or file:PATH, never given itself."""


class BadSchedule(RequestError):
    """The times or the gates of a schedule cannot be used."""


class TooLarge(RequestError):
    """The request is larger than the service takes."""


class KeyMissing(RequestError):
    """This needs a key, in the header Authorization: Bearer KEY."""


class KeyRefused(RequestError):
    """The key is unknown, expired or revoked."""


class AdminNeeded(RequestError):
    """This needs a key of the level admin."""


class SessionOver(RequestError):
    """The browser must sign in again."""


class CsrfTokenWrong(RequestError):
    """A change from a browser carries its session's token."""


class NotFound(RequestError):
    """There is no such thing."""


class NameTaken(RequestError):
    """Something else has this name."""


class WrongState(RequestError):
    """This cannot be done in the state it is in."""


class ApprovalNeeded(RequestError):
    """A plan is pushed only when it has been approved."""


class EngineInUse(RequestError):
    """A job of this engine has not ended."""


class IdempotencyKeyReused(RequestError):
    """The idempotency key was used for another request."""


class VersionChanged(RequestError):
    """It has changed since it was read."""


class VersionNeeded(RequestError):
    """A change needs the header If-Match with the ETag that was read."""


class SecretMissing(ApiError):
    """A secret is not where its reference says."""


class EngineResting(ApiError):
    """The engine failed several times in a row and is left alone for a while."""


class EngineCallsFull(ApiError):
    """As many requests wait for engines already as the service lets wait at a time."""


class JobStopped(ApiError):
    """The job was stopped."""


class ClientError(ApiError):
    """The moeplan service that was asked did not do it."""


class ServiceUnreachable(ClientError):
    """No moeplan service answers there."""


class ServiceAnswerInvalid(ClientError):
    """What answers is no moeplan service, or not one of this version."""


class ServiceRefused(ClientError):
    """The service refused.

    Parameters
    ----------
    code
        As the service gave it.
    """

    def __init__(self, detail: str = "", *, code: str = "SERVICE_REFUSED", remedies: tuple[str, ...] = ()) -> None:
        super().__init__(detail, remedies=remedies)
        self.code = code
