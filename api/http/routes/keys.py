"""``/v1/keys`` and ``/v1/audit``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.http.edge import Admin, Answer, Pages, Reader
from api.http.problems import documented
from api.http.schemas.common import AuditEventOut, PageOut, ReasonIn
from api.http.schemas.keys import KeyIn, KeyOut, NewKeyOut
from api.service import keys as key_service
from api.store import audit, keys
from api.store.database import Session

router = APIRouter(tags=["access"])


@router.get("/keys", response_model=PageOut[KeyOut])
def list_keys(edge: Admin, pages: Pages) -> PageOut[KeyOut]:
    """List the keys, newest first; never the keys themselves."""
    with edge.service.database.reading() as session:
        page = keys.page(session, pages)
    return PageOut(items=[KeyOut.model_validate(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post("/keys", status_code=201, response_model=NewKeyOut)
def make_key(body: KeyIn, edge: Admin) -> Response:
    """Make a key. It is shown this once, so this takes no `Idempotency-Key`: answers that are kept hold no secrets."""

    def act(session: Session) -> Answer:
        key, secret = key_service.make(
            session, edge.actor, name=body.name, level=body.level, expires_at=body.expires_at
        )
        session.flush()
        shown = NewKeyOut(**KeyOut.model_validate(key).model_dump(), key=secret)
        return Answer(201, shown, {"Location": f"/v1/keys/{key.id}"})

    return edge.change(act)


@router.get("/keys/{key_id}", response_model=KeyOut, responses=documented(404))
def get_key(key_id: str, edge: Admin) -> KeyOut:
    """Show a key, without the key itself."""
    with edge.service.database.reading() as session:
        return KeyOut.model_validate(keys.find(session, key_id))


@router.delete("/keys/{key_id}", status_code=204, responses=documented(404, 409))
def revoke_key(key_id: str, edge: Admin, body: ReasonIn | None = None) -> Response:
    """Let a key open nothing any more."""

    def act(session: Session) -> Answer:
        key_service.revoke(session, edge.actor, keys.find(session, key_id), why=body.reason if body else "")
        return Answer(204)

    return edge.change(act)


@router.get("/audit", response_model=PageOut[AuditEventOut], tags=["access"])
def list_audit_events(
    edge: Reader, pages: Pages, subject_id: Annotated[str | None, Query(max_length=40)] = None
) -> PageOut[AuditEventOut]:
    """List who changed what, when and why, newest first."""
    with edge.service.database.reading() as session:
        page = audit.events(session, subject_id=subject_id, paging=pages)
    return PageOut(items=[AuditEventOut.model_validate(row) for row in page.rows], next_cursor=page.next_cursor)
