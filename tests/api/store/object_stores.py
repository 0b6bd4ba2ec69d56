"""Object stores for tests: in memory, and a real S3 server in a thread."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
from moto.server import ThreadedMotoServer

from api.store.object_files import ObjectFileStore, open_files

NewStore = Callable[[Path], ObjectFileStore]


@contextmanager
def s3_server() -> Iterator[str]:
    """Run an S3 server and point this process's S3 clients at it; its URL."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    variables = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "of-the-tests",
        "AWS_SECRET_ACCESS_KEY": "of-the-tests",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield variables["AWS_ENDPOINT_URL"]
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        server.stop()


def new_bucket() -> str:
    """Make a bucket; the URL of a folder in it."""
    name = f"moeplan-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3", skip_instance_cache=True).mkdir(name)
    return f"s3://{name}/kept"


def s3_store(folder: Path) -> ObjectFileStore:
    store = open_files(folder, new_bucket())
    assert isinstance(store, ObjectFileStore)
    return store


def memory_store(folder: Path) -> ObjectFileStore:
    objects = fsspec.filesystem("memory", use_listings_cache=False)
    return ObjectFileStore(folder / "copies", objects, f"/{uuid.uuid4().hex}/kept")
