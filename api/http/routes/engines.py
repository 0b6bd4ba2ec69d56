"""``/v1/engines``."""

from __future__ import annotations

from fastapi import APIRouter, Response

from api.http.edge import Admin, Answer, Edge, IdempotencyKey, IfMatch, IfNoneMatch, Pages, Reader, etag
from api.http.problems import documented
from api.http.schemas.common import PageOut, ReasonIn
from api.http.schemas.engines import EngineChange, EngineIn, EngineOut
from api.service import engines as engine_service
from api.store import engines
from api.store.database import Session

router = APIRouter(prefix="/engines", tags=["engines"])

FIELDS = {"key": "key_reference", "read_key": "read_key_reference"}


@router.get("", response_model=PageOut[EngineOut])
def list_engines(edge: Reader, pages: Pages) -> PageOut[EngineOut]:
    """List the engines, newest first."""
    with edge.service.database.reading() as session:
        page = engines.page(session, pages)
    return PageOut(items=[EngineOut.of(row) for row in page.rows], next_cursor=page.next_cursor)


@router.post("", status_code=201, response_model=EngineOut, responses=documented(409))
def register_engine(body: EngineIn, edge: Admin, idempotency_key: IdempotencyKey = None) -> Response:
    """Register an engine and read it. One that does not answer is registered too, and says so."""

    with edge.waiting_for(body.url):
        return _registered_and_read(body, edge)


def _registered_and_read(body: EngineIn, edge: Edge) -> Response:
    def act(session: Session) -> Answer:
        engine = engine_service.register(
            session,
            edge.actor,
            name=body.name,
            url=body.url,
            key_reference=body.key,
            read_key_reference=body.read_key,
            labels=body.labels,
            costs=body.costs,
            topology_text=body.topology_text,
        )
        session.flush()
        return Answer(201, EngineOut.of(engine), {"Location": f"/v1/engines/{engine.id}", "ETag": etag(engine.version)})

    response = edge.once(body.model_dump(mode="json"), act)
    engine_id = response.headers["location"].rsplit("/", 1)[-1]
    if "idempotency-replayed" in response.headers:
        return response
    engine_service.read(edge.service, engine_id)
    with edge.service.database.reading() as session:
        engine = engines.find(session, engine_id)
    shown = EngineOut.of(engine).model_dump_json()
    headers = {"Location": f"/v1/engines/{engine_id}", "ETag": etag(engine.version)}
    return Response(shown, status_code=201, headers=headers, media_type="application/json")


@router.get("/{engine_id}", response_model=EngineOut, responses=documented(404) | {304: {"description": "Known."}})
def get_engine(engine_id: str, edge: Reader, if_none_match: IfNoneMatch = None) -> Response:
    """Show an engine as it was last read."""
    with edge.service.database.reading() as session:
        engine = engines.find(session, engine_id)
    return edge.read(EngineOut.of(engine), tag=etag(engine.version))


@router.post("/{engine_id}/read", response_model=EngineOut, responses=documented(404))
def read_engine(engine_id: str, edge: Admin) -> EngineOut:
    """Ask the engine what it is now, also one that is resting; what goes wrong stands in the answer."""
    with edge.waiting_for(engine_id):
        engine_service.read(edge.service, engine_id)
    with edge.service.database.reading() as session:
        return EngineOut.of(engines.find(session, engine_id))


@router.patch("/{engine_id}", response_model=EngineOut, responses=documented(404, 409, 412, 428))
def change_engine(engine_id: str, body: EngineChange, edge: Admin, if_match: IfMatch = None) -> Response:
    """Change an engine; its history stays."""

    def act(session: Session) -> Answer:
        engine = engines.find(session, engine_id)
        edge.require_version(engine.version)
        given = body.model_dump(mode="json", exclude_unset=True)
        changes = {FIELDS.get(name, name): value for name, value in given.items()}
        for required in ("name", "url", "labels"):
            if changes.get(required, ...) is None:
                del changes[required]
        engine_service.change(session, edge.actor, engine, changes)
        session.flush()
        return Answer(200, EngineOut.of(engine), {"ETag": etag(engine.version)})

    return edge.change(act)


@router.delete("/{engine_id}", status_code=204, responses=documented(404, 409))
def remove_engine(engine_id: str, edge: Admin, body: ReasonIn | None = None) -> Response:
    """Forget an engine. Recordings, plans and the audit log stay."""

    def act(session: Session) -> Answer:
        engine = engines.find(session, engine_id)
        engine_service.remove(session, edge.actor, engine, why=body.reason if body else "")
        return Answer(204)

    return edge.change(act)
