"""Settings: where they come from, in which order, and that secrets are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.errors import BadSetting
from api.settings import read_settings

SECRET = "a-very-secret-key-0123"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "moeplan.toml"
    file.write_text('port = 1111\nhost = "::1"\nworkers = 3\n')
    return file


def test_flags_before_variables_before_the_file(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPLAN_PORT", "2222")
    monkeypatch.setenv("MOEPLAN_HOST", "127.0.0.2")
    settings = read_settings(config, port=3333, workers=None)
    assert (settings.port, settings.host, settings.workers) == (3333, "127.0.0.2", 3)


def test_the_file_may_be_named_by_a_variable(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPLAN_CONFIG", str(config))
    assert read_settings().port == 1111


def test_sqlite_in_the_data_folder_is_usual(tmp_path: Path) -> None:
    assert read_settings(data_dir=tmp_path).database.database == str(tmp_path / "moeplan.db")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg", "postgresql+psycopg2"])
def test_postgresql_always_means_psycopg_3(scheme: str) -> None:
    assert read_settings(database_url=f"{scheme}://u@h/d").database.drivername == "postgresql+psycopg"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("port", 70000), ("workers", -1), ("log_level", "loud"), ("database_url", "mysql://h/d"),
        ("max_upload_bytes", 0), ("database_url", "no url"), ("database_url", "sqlite://"), ("api_key", "short"),
        ("admin_api_key", "with a space in it"), ("plan_workers", 0), ("plan_workers", "dask"),
        ("trace_retention_days", 0), ("engine_timeout_s", "soon"), ("prot", 80),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named(setting: str, value: object) -> None:
    with pytest.raises(BadSetting, match=rf"the setting {setting} \(or MOEPLAN_{setting.upper()}\)"):
        read_settings(**{setting: value})


@pytest.mark.parametrize("content", ["port = ", "prot = 1", "\xff"])
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadSetting):
        read_settings(file)
    with pytest.raises(BadSetting, match="does not exist"):
        read_settings(tmp_path / "none.toml")


@pytest.mark.parametrize(("text", "value"), [("1", 1), ("12", 12), ("ray", "ray")])
def test_the_search_runs_on_processes_or_on_ray(monkeypatch: pytest.MonkeyPatch, text: str, value: object) -> None:
    monkeypatch.setenv("MOEPLAN_PLAN_WORKERS", text)
    settings = read_settings()
    assert settings.plan_workers == value
    assert settings.as_variables()["MOEPLAN_PLAN_WORKERS"] == text


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEPLAN_ADMIN_API_KEY", SECRET)
    settings = read_settings(api_key=SECRET + "x", database_url=f"postgresql://u:{SECRET}@h/d")
    assert SECRET not in repr(settings)
    assert SECRET not in str(settings.model_dump())
    assert settings.database.password == SECRET
    for bad in ({"api_key": SECRET + " "}, {"database_url": f"mysql://u:{SECRET}@h/d"}):
        with pytest.raises(BadSetting) as refused:
            read_settings(**bad)
        assert SECRET not in str(refused.value)


class TestFilesOfSecrets:
    """A folder as containers, Kubernetes and systemd mount it, named by MOEPLAN_SECRETS_DIR."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "secrets"
        folder.mkdir()
        monkeypatch.setenv("MOEPLAN_SECRETS_DIR", str(folder))
        return folder

    def test_a_file_is_a_setting_and_its_last_line_break_is_none_of_it(self, folder: Path) -> None:
        (folder / "moeplan_admin_api_key").write_text(SECRET + "\n")
        (folder / "postgres_password").write_text("of somebody else")
        settings = read_settings()
        assert settings.admin_api_key is not None
        assert settings.admin_api_key.get_secret_value() == SECRET
        assert settings.api_key is None

    def test_variables_come_before_it_and_the_settings_file_after_it(
        self, folder: Path, config: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("port", "workers"):
            (folder / f"moeplan_{name}").write_text("7")
        monkeypatch.setenv("MOEPLAN_PORT", "2222")
        settings = read_settings(config)
        assert (settings.port, settings.workers, settings.host) == (2222, 7, "::1")

    def test_a_bad_secret_is_named_and_not_shown(self, folder: Path) -> None:
        (folder / "moeplan_api_key").write_text(SECRET + " x")
        with pytest.raises(BadSetting, match="api_key") as refused:
            read_settings()
        assert SECRET not in str(refused.value)

    def test_one_that_is_not_text_is_one_sentence(self, folder: Path) -> None:
        (folder / "moeplan_api_key").write_bytes(b"\xff\xfe" * 12)
        with pytest.raises(BadSetting, match="UTF-8"):
            read_settings()

    def test_a_folder_that_is_not_there_is_one_sentence(self, folder: Path) -> None:
        folder.rmdir()
        with pytest.raises(BadSetting, match="MOEPLAN_SECRETS_DIR"):
            read_settings()
